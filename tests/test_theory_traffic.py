"""Traffic: the worked numbers, the limits, and what the kernel counted on real ranks."""

import math

import pytest

from dpviz.theory import traffic
from dpviz.theory.traffic import Sent

# Bytes sent a rank by one gloo all-reduce, read from the kernel's TCP counters (torch 2.13.0, Linux).
ALL_REDUCE_ON_THE_WIRE = {  # (ranks, elements, bytes an element): one entry a rank
    (2, 1, 4): [148, 148],
    (2, 4, 4): [592, 592],
    (2, 1000, 4): [4576, 4576],
    (2, (1 << 21) + 7, 4): [8390076, 8390076],
    (2, 1 << 22, 4): [16779520, 16779520],
    (3, 1, 4): [148, 196, 248],
    (3, 4, 4): [792, 688, 888],
    (3, 1000, 4): [6488, 6480, 6488],
    (3, 12345, 4): [66996, 66984, 66996],
    (3, 1001, 2): [3822, 3820, 3822],
    (3, 1 << 21, 4): [11186540, 11186536, 11186540],
    (4, 1, 4): [148, 196, 296, 248],
    (4, 4, 4): [792, 688, 984, 1088],
    (4, 12345, 4): [75812, 75784, 75784, 75812],
    (4, 1001, 2): [4738, 4724, 4724, 4738],
    (4, 10, 8): [1184, 1008, 1216, 1392],
    (4, 37, 4): [1956, 1944, 1944, 1956],
    (4, 1 << 21, 4): [12584640, 12584640, 12584640, 12584640],
    (5, 4, 4): [792, 688, 984, 1184, 1088],
    (5, 12345, 4): [81324, 81304, 81304, 81304, 81324],
    (5, 1 << 22, 4): [26848192, 26848128, 26848128, 26848128, 26848192],
    (6, 5, 8): [1120, 960, 1160, 1416, 1520, 1424],
    (6, 64, 8): [3584, 3424, 3424, 3424, 3472, 3632],
}
BROADCAST_ON_THE_WIRE = {  # (ranks, root): copies sent by each rank, headers left out
    (2, 0): [1, 0],
    (3, 1): [0, 2, 0],
    (4, 0): [2, 1, 0, 0],
    (4, 1): [0, 2, 1, 0],
    (5, 0): [3, 1, 0, 0, 0],
    (5, 1): [0, 3, 1, 0, 0],
}


@pytest.mark.parametrize("case", ALL_REDUCE_ON_THE_WIRE)
def test_gloo_all_reduce_is_what_the_kernel_counted(case):
    k, elements, element_size = case
    sent = traffic.gloo_all_reduce(elements, k, element_size=element_size)
    assert [payload + framing for payload, framing in sent] == ALL_REDUCE_ON_THE_WIRE[case]


@pytest.mark.parametrize("case", BROADCAST_ON_THE_WIRE)
def test_broadcast_is_what_the_kernel_counted(case):
    k, root = case
    assert traffic.broadcast_bytes(1000, k, root=root) == [1000 * copies for copies in BROADCAST_ON_THE_WIRE[case]]


@pytest.mark.parametrize(
    "k, root, headers",
    [(2, 0, [96, 48]), (3, 1, [48, 192, 48]), (4, 0, [192, 144, 48, 48]), (5, 1, [48, 288, 144, 48, 48])],
)
def test_the_headers_of_a_broadcast_are_what_the_kernel_counted(k, root, headers):
    assert traffic.broadcast_framing_bytes(k, root=root) == headers
    assert traffic.broadcast_framing_bytes(1) == [0]


@pytest.mark.parametrize("k", range(1, 33))
def test_a_broadcast_is_k_minus_1_copies_and_the_root_sends_log_k(k):
    sent = traffic.broadcast_bytes(1, k)
    assert sum(sent) == k - 1 and sent[0] == max(sent) == math.ceil(math.log2(k))


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7, 8, 32])
def test_all_ranks_together_send_what_the_ring_must(k):
    for elements in (1, 5, 1000, 4321, 1 << 20):
        sent = traffic.gloo_all_reduce(elements, k, element_size=4)
        assert sum(rank.payload for rank in sent) == 2 * (k - 1) * 4 * elements
        assert max(rank.payload for rank in sent) - min(rank.payload for rank in sent) <= 4 * elements


@pytest.mark.parametrize("k", [2, 4, 8])
def test_a_payload_that_divides_evenly_gives_the_closed_forms(k):
    expected = Sent(traffic.ring_all_reduce_bytes(64 * 1024, k), traffic.framing_bytes(k))
    assert traffic.gloo_all_reduce(16 * 1024, k, element_size=4) == [expected] * k


def test_two_models_of_traffic_is_true_only_of_many_ranks():
    ratios = [traffic.ring_all_reduce_bytes(24_000, k) / 24_000 for k in (1, 2, 3, 4, 8)]
    assert [round(ratio, 2) for ratio in ratios] == [0, 1.0, 1.33, 1.5, 1.75]


def test_the_worked_numbers_of_a_7b_model():
    assert traffic.ring_all_reduce_bytes(7e9 * 2, 8) == 24_500_000_000


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather():
    assert traffic.reduce_scatter_bytes(4000, 4) == traffic.all_gather_bytes(4000, 4) == 3000
    assert traffic.reduce_scatter_bytes(4000, 4, algorithm="gloo") == traffic.ring_all_reduce_bytes(4000, 4) == 6000


def test_bytes_are_exact_integers_even_where_floats_are_not():
    assert traffic.all_gather_bytes(3 * (2**60 + 1), 3) == 2 * (2**60 + 1)
    assert traffic.ring_all_reduce_bytes(1, 4) == 2  # 1.5 rounded


def test_framing_grows_with_ranks_and_calls():
    assert [traffic.framing_bytes(k, 1) for k in (1, 2, 4, 8)] == [0, 576, 1728, 4032]
    assert traffic.framing_bytes(4, 3) == 3 * 1728 and traffic.framing_bytes(4, 0) == 0


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda: traffic.ring_all_reduce_bytes(10, 0), "k is 0, but must be a whole number of ranks, 1 or more"),
        (lambda: traffic.all_gather_bytes(10, 2.5), "k is 2.5"),
        (lambda: traffic.reduce_scatter_bytes(10, True), "k is True"),
        (lambda: traffic.ring_all_reduce_bytes(-1, 2), "a payload of -1 was given"),
        (lambda: traffic.ring_all_reduce_bytes(math.nan, 2), "a payload of nan was given"),
        (lambda: traffic.ring_all_reduce_bytes(math.inf, 2), "a payload of inf was given"),
        (lambda: traffic.ring_all_reduce_bytes(1.5, 2), "a payload of 1.5 was given"),
        (
            lambda: traffic.reduce_scatter_bytes(10, 2, algorithm="tree"),
            "algorithm is 'tree', but must be ring or gloo",
        ),
        (lambda: traffic.broadcast_bytes(10, 2, root=2), "root is 2, but must be a rank from 0 to 1"),
        (lambda: traffic.framing_bytes(2, -1), "calls is -1"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
