from __future__ import annotations

OFF = "\t\tACSCtl: SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-\n"
ON = OFF.replace("SrcValid-", "SrcValid+").replace("ReqRedir-", "ReqRedir+")


def test_bridges_that_redirect_nothing_are_in_order(examined):
    examination, kind = examined(OFF * 12)
    assert (kind, examination.word) == ("lspci -vvv | grep ACSCtl", "HEALTHY")


def test_a_bridge_that_redirects_is_found(examined):
    (found,) = examined(OFF * 3 + ON + OFF)[0].found
    assert found.what.startswith("1 of 5 bridges and functions send traffic between devices up to the CPU")
    assert found.evidence.startswith("said.txt:4: ACSCtl: SrcValid+")


def test_the_command_that_was_copied_with_it_changes_nothing(examined):
    prompt = "root@cb17:~# "
    examination, kind = examined(f"{prompt}lspci -vvv | grep ACSCtl\n{OFF * 3}{ON}{prompt}\n")
    assert kind == "lspci -vvv | grep ACSCtl"
    assert [found.name for found in examination.found] == ["acs"]


def test_a_bridge_of_a_real_text_that_is_planted_on_is_found(examined, sample):
    text = sample("lspci_vvv_acsctl.txt")
    assert examined(text)[0].word == "HEALTHY"
    assert [found.name for found in examined(text.replace("ReqRedir-", "ReqRedir+", 1))[0].found] == ["acs"]
