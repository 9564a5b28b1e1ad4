"""What the programs print, written for these tests: no real host, device or serial number."""

PERFTEST_BANDWIDTH = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : mlx5_9
 Number of qps   : 1            Transport type : IB
 Mtu             : 4096[B]
---------------------------------------------------------------------------------------
 local address: LID 0x01 QPN 0x0001 PSN 0x000001
 remote address: LID 0x02 QPN 0x0002 PSN 0x000002
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 65536      5000             23447.50            23437.50             0.375000
---------------------------------------------------------------------------------------
"""

PERFTEST_GIGABITS = """\
                    RDMA_Read BW Test
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             0.00               196.61               0.375000
"""

PERFTEST_BIDIRECTIONAL = """\
                    RDMA_Write Bidirectional BW Test
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      5000             46895.00           46875.00             0.750000
"""

PERFTEST_LATENCY = """\
                    RDMA_Write Latency Test
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
99% percentile[usec]   99.9% percentile[usec]
 8       1000          1.71           5.20         1.75     \t       1.77        \t0.00   \t\t2.10    \t\t4.90
---------------------------------------------------------------------------------------
"""

UCX = """\
+--------------+--------------+------------------------------+---------------------+-----------------------+
|              |              |       overhead (usec)        |   bandwidth (MB/s)  |  message rate (msg/s) |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
|    Stage     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
Final:                   1000    107.250   108.009   108.010     9258.54    9258.44        9259        9258
"""

COPYBW = """\
GPU id:0; name: Some GPU; Bus id: 0000:01:00
selecting device 0
testing size: 65536
rounded size: 65536
writing test, size=65536 offset=0 num_iters=1000
write BW: 9765.5MB/s
reading test, size=65536 offset=0 num_iters=100
read BW: 512.25MB/s
unmapping buffer
unpinning buffer
closing gdrdrv
"""

COPYLAT = """\
GPU id:0; name: Some GPU; Bus id: 0000:01:00
gdr_copy_to_mapping num iters for each size: 1000
WARNING: Measuring the API invocation overhead as observed by the CPU. Data
might not be ordered all the way to the GPU internal visibility.
Test \t\t\t Size(B) \t Avg.Time(us)
gdr_copy_to_mapping             1         0.0889
gdr_copy_to_mapping             2         0.0884
gdr_copy_to_mapping             4         0.0891

gdr_copy_from_mapping num iters for each size: 100
Test \t\t\t Size(B) \t Avg.Time(us)
gdr_copy_from_mapping           1         0.9100
gdr_copy_from_mapping           2         1.7100
gdr_copy_from_mapping           4         1.7200
unmapping buffer
"""

COPYLAT_MEDIANS = """\
GPU id:0; name: Some GPU; Bus id: 0000:01:00

gdr_copy_to_mapping num iters for each size: 1000
WARNING: Measuring the API invocation overhead as observed by the CPU. Data might not be ordered all the way to \
the GPU internal visibility.
Test \t\t\t Size(B) \t Median Time(us) \t Min. Time(us)
gdr_copy_to_mapping \t        1 \t      0.0889 \t      0.0881
gdr_copy_to_mapping \t        2 \t      0.0884 \t      0.0880

gdr_copy_from_mapping num iters for each size: 100
Test \t\t\t Size(B) \t Median Time(us) \t Min. Time(us)
gdr_copy_from_mapping \t        1 \t      0.9100 \t      0.9000
gdr_copy_from_mapping \t        2 \t      1.7100 \t      1.7000
unmapping buffer
"""

PPLAT_MEDIAN = """\
selecting device 0
Benchmark mode: CPU produces and GPU consumes
Round-trip latency per iteration is (min) 1.05, (median) 1.25 us
closing gdrdrv
"""

PPLAT = """\
selecting device 0
CPU does gdr_copy_to_mapping and GPU writes back via cuMemHostAlloc'd buffer.
Running 1000 iterations with data size 4 bytes.
Round-trip latency per iteration is 1.25 us
unmapping buffer
"""

NVBANDWIDTH = """\
nvbandwidth Version: v0.8
Device 0: Some GPU (00000000:01:00)
Device 1: Some GPU (00000000:02:00)

Running device_to_device_memcpy_write_ce.
memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    276.07
 1    275.50       N/A

SUM device_to_device_memcpy_write_ce 551.57

NOTE: The reported results may not reflect the full capabilities of the platform.
"""

# as multinode_testcases.cpp and operator<< of 0.8 print it for two processes on each of two hosts
NVBANDWIDTH_BISECT = """\
nvbandwidth Version: v0.8
Built from Git version: v0.8

MPI version: Open MPI v5.0.3
Process 0 (tray-a): device 0: NVIDIA GB200 (00000008:01:00)
Process 1 (tray-a): device 1: NVIDIA GB200 (00000009:01:00)
Process 2 (tray-b): device 0: NVIDIA GB200 (00000008:01:00)
Process 3 (tray-b): device 1: NVIDIA GB200 (00000009:01:00)

Running multinode_bisect_write_ce.
Bisect benchmarking, simultaneous write CE BW
             0
0->2    781.21
1->3    780.10
2->0    781.35
3->1    779.98

SUM multinode_bisect_write_ce 3122.64

NOTE: The reported results may not reflect the full capabilities of the platform.
"""

NVBANDWIDTH_MULTINODE_BOTH_WAYS = """\
Running multinode_device_to_device_bidirectional_memcpy_write_ce.
memcpy CE CPU(row) <-> GPU(column) Read1 bandwidth (GB/s)
           0         1
 0       N/A    750.10
 1    751.20       N/A

SUM multinode_device_to_device_bidirectional_memcpy_write_ce_write1 1501.30

memcpy CE CPU(row) <-> GPU(column) Read2 bandwidth (GB/s)
           0         1
 0       N/A    749.90
 1    740.00       N/A

SUM multinode_device_to_device_bidirectional_memcpy_write_ce_write2 1489.90

memcpy CE CPU(row) <-> GPU(column) Total bandwidth (GB/s)
           0         1
 0       N/A   1500.00
 1   1491.20       N/A

SUM multinode_device_to_device_bidirectional_memcpy_write_ce_total 2991.20

"""

NVBANDWIDTH_ONE_TO_ALL = """\
Running multinode_device_to_device_broadcast_one_to_all_sm.
multicast SM GPU(column) -> All Gpus total bandwidth (GB/s)
           0         1
 0    350.10    351.20

SUM multinode_device_to_device_broadcast_one_to_all_sm 701.30

"""

NVBANDWIDTH_ALL_TO_ALL = """\
Running multinode_device_to_device_broadcast_all_to_all_sm.
multicast SM All -> All Gpus total bandwidth (GB/s)
           0
 0    402.50

SUM multinode_device_to_device_broadcast_all_to_all_sm 402.50

"""

NVBANDWIDTH_LATENCY = """\
Running host_device_latency_sm.
memory latency SM CPU(row) <-> GPU(column) (ns)
           0         1
 0    772.50    780.25

SUM host_device_latency_sm 1552.75

"""

NVBANDWIDTH_BOTH_WAYS = """\
nvbandwidth Version: v0.8

Running device_to_device_bidirectional_memcpy_write_ce.
memcpy CE GPU(row) <-> GPU(column) Write1 bandwidth (GB/s)
           0         1
 0       N/A    250.10
 1    251.20       N/A

SUM device_to_device_bidirectional_memcpy_write_ce_write1 501.30

memcpy CE GPU(row) <-> GPU(column) Write2 bandwidth (GB/s)
           0         1
 0       N/A    249.90
 1    240.00       N/A

SUM device_to_device_bidirectional_memcpy_write_ce_write2 489.90

memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)
           0         1
 0       N/A    500.00
 1    491.20       N/A

SUM device_to_device_bidirectional_memcpy_write_ce_total 991.20

NOTE: The reported results may not reflect the full capabilities of the platform.
"""

NCCL_TESTS = """\
# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#  Rank  0 Group  0 Pid      1 on    somehost device  0 [0000:01:00] Some GPU
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    41.25   25.42   44.48       0    40.75   25.73   45.03       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 44.755
#
# Collective test concluded: all_reduce_perf
"""

NCCL_ALLTOALL = """\
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0   float             1.63    0.00    0.00    N/A     1.38    0.00    0.00    N/A
     1048576         32768   float            87.42   11.99   10.50    N/A    88.90   11.79   10.32    N/A
# Out of bounds values : 0 OK
"""

NCCL_PER_ITERATION = """\
#       size         count    type   redop    root     time   algbw   busbw  #wrong   i_min   i_max   i_p99   i_cv%   \
  time   algbw   busbw  #wrong   i_min   i_max   i_p99   i_cv%
#        (B)    (elements)                             (us)  (GB/s)  (GB/s)            (us)    (us)    (us)           \
  (us)  (GB/s)  (GB/s)            (us)    (us)    (us)
     1048576        262144   float     sum      -1    41.25   25.42   44.48       0   40.10   43.20   43.10    1.20   \
 40.75   25.73   45.03       0   40.00   42.50   42.40    1.10
# Out of bounds values : 0 OK
"""

NVSHMEM = """\
mype: 0 mype_node: 0 device name: Some GPU bus id: 1
shmem_put_latency
&&&& PERF shmem_put_latency___Thread___size__1024___latency 4.250000 -us
shmem_put_latency
&&&& PERF shmem_put_latency___Warp___size__1024___latency 3.500000 -us
shmem_put_latency
&&&& PERF shmem_put_latency___Block___size__1024___latency 3.750000 -us
"""

DEEPEP_INTERNODE = """\
[testing] Running with FP8, with top-k (async=True, previous=True) ... passed

[tuning] SMs 24, NVL chunk 4, RDMA chunk 4: 60 + 1400 us, 43.12 GB/s (RDMA), 140.73 GB/s (NVL)
[tuning] Best dispatch (FP8): SMs 24, NVL chunk 8, RDMA chunk 12: 56 + 1375 us, 43.75 GB/s (RDMA), 142.50 GB/s (NVL)
[tuning] Best dispatch (BF16): SMs 24, NVL chunk 8, RDMA chunk 8: 58 + 2625 us, 44.50 GB/s (RDMA), 145.25 GB/s (NVL)
[tuning] Best combine: SMs 24, NVL chunk 3, RDMA chunk 16, 142.50 + 2700.00 us, 43.25 GB/s (RDMA), 141.50 GB/s (NVL)
"""

DEEPEP_INTRANODE = """\
[tuning] SMs 24, NVL chunk 4: 150.10 GB/s (NVL)
[tuning] Best dispatch (FP8): SMs 24, NVL chunk 16, 153.25 GB/s (NVL)
[tuning] Best dispatch (BF16): SMs 24, NVL chunk 20, 155.50 GB/s (NVL)
[tuning] Best combine: SMs 24, NVL chunk 4: 158.75 GB/s (NVL)
"""

DEEPEP_LOW_LATENCY = """\
Allocating buffer size: 2116.29 MB ...
[rank 0] Dispatch + combine bandwidth: 52.25 GB/s, avg_t=420.50 us, min_t=410.25 us, max_t=900.75 us
[rank 1] Dispatch + combine bandwidth: 50.50 GB/s, avg_t=435.00 us, min_t=412.00 us, max_t=950.50 us
[rank 0] Dispatch bandwidth: 48.25 GB/s, avg_t=155.50 us | Combine bandwidth: 55.50 GB/s, avg_t=262.25 us
[rank 1] Dispatch bandwidth: 47.75 GB/s, avg_t=157.25 us | Combine bandwidth: 54.75 GB/s, avg_t=265.50 us
[rank 0] Dispatch send/recv time: 20.50 + 15.25 us | Combine send/recv time: 25.75 + 18.50 us
[rank 1] Dispatch send/recv time: 20.75 + 15.50 us | Combine send/recv time: 25.50 + 18.25 us
"""

IPERF3 = """\
{
\t"start":\t{
\t\t"version":\t"iperf 3.12"
\t},
\t"end":\t{
\t\t"streams":\t[{
\t\t\t\t"sender":\t{
\t\t\t\t\t"retransmits":\t7,
\t\t\t\t\t"mean_rtt":\t450
\t\t\t\t}
\t\t\t}],
\t\t"sum_sent":\t{
\t\t\t"bits_per_second":\t8100000000,
\t\t\t"retransmits":\t7
\t\t},
\t\t"sum_received":\t{
\t\t\t"seconds":\t2.0,
\t\t\t"bytes":\t2000000000,
\t\t\t"bits_per_second":\t8000000000
\t\t}
\t}
}
"""

FIO = """\
{
  "fio version" : "fio-3.33",
  "jobs" : [
    {
      "jobname" : "clusterbench",
      "error" : 0,
      "read" : {
        "io_bytes" : 2097152000,
        "bw_bytes" : 1048576000,
        "bw" : 1024000,
        "iops" : 1000.0,
        "runtime" : 2000,
        "clat_ns" : {
          "mean" : 990000.0,
          "percentile" : {
            "50.000000" : 950272,
            "99.000000" : 1531904
          }
        }
      },
      "write" : {
        "io_bytes" : 0,
        "bw_bytes" : 0,
        "iops" : 0.0,
        "runtime" : 0,
        "clat_ns" : {
          "mean" : 0.0
        }
      }
    }
  ]
}
"""
