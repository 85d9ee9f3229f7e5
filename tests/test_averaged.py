"""The average of a network's weights, by hand."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dietcl.methods.pieces.averaged import DECAY, AveragedWeights


def net_of(**weights):
    """Return what stands for a network: its weights can be changed."""
    assert all(isinstance(value, torch.Tensor) for value in weights.values())
    return SimpleNamespace(values=weights, weights=lambda live: {} if live else weights)


def begun(net):
    averaged = AveragedWeights()
    averaged.begin_step(net)
    return averaged


def test_the_average_begins_as_a_copy():
    net = net_of(encoder=torch.tensor([1.0, 2.0]), head=torch.zeros(2, 3))
    averaged = begun(net)
    net.values["encoder"] += 7
    assert averaged.values["encoder"].tolist() == [1, 2]
    assert averaged.values["head"].tolist() == [[0] * 3] * 2


def test_the_first_updates_of_a_time_step_weigh_more_by_hand():
    net = net_of(w=torch.tensor([0.0], dtype=torch.float64))
    averaged = begun(net)
    net.values["w"].fill_(11.0)
    averaged.update(net)  # 1/11 of 0 and 10/11 of 11
    assert float(averaged.values["w"]) == pytest.approx(10)
    net.values["w"].fill_(-2.0)
    averaged.update(net)  # 2/12 of 10 and 10/12 of -2
    assert float(averaged.values["w"]) == pytest.approx(0)
    averaged.begin_step(net)
    net.values["w"].fill_(22.0)
    averaged.update(net)
    assert float(averaged.values["w"]) == pytest.approx(20)


def test_after_many_updates_the_average_forgets_at_a_fixed_pace():
    net = net_of(w=torch.tensor([1.0], dtype=torch.float64))
    averaged = begun(net)
    for _ in range(1000):
        averaged.update(net)
    net.values["w"].fill_(0.0)
    for _ in range(30):
        averaged.update(net)
    assert float(averaged.values["w"]) == pytest.approx(DECAY**30)


def test_weights_that_do_not_change_stay_as_they_are_bit_for_bit():
    value = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    net = net_of(w=value)
    averaged = begun(net)
    for _ in range(40):
        averaged.update(net)
    assert torch.equal(averaged.values["w"], value)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-100, 100), min_size=1, max_size=60))
def test_the_average_lies_among_the_weights_that_were(values):
    net = net_of(w=torch.tensor([values[0]], dtype=torch.float64))
    averaged = begun(net)
    for value in values:
        net.values["w"].fill_(value)
        averaged.update(net)
    assert min(values) - 1e-9 <= float(averaged.values["w"]) <= max(values) + 1e-9


def test_rows_that_the_head_has_grown_by_are_taken_over_and_the_others_stay_averages():
    net = net_of(**{"encoder": torch.zeros(2), "head.weight": torch.zeros(1, 2), "head.bias": torch.zeros(1)})
    averaged = begun(net)
    for value in net.values.values():
        value.fill_(11.0)
    averaged.update(net)
    net.values["head.weight"] = torch.tensor([[11.0, 11.0], [5.0, 6.0]])
    net.values["head.bias"] = torch.tensor([11.0, 7.0])
    averaged.begin_step(net)
    for name, wanted in (("encoder", [10, 10]), ("head.weight", [[10, 10], [5, 6]]), ("head.bias", [10, 7])):
        torch.testing.assert_close(averaged.values[name], torch.tensor(wanted, dtype=torch.float32))
    net.values["head.bias"][1] = 100.0
    assert float(averaged.values["head.bias"][1]) == 7


def test_a_head_without_classes_is_taken_in_once_it_has_some():
    net = net_of(**{"encoder": torch.ones(2), "head.bias": torch.zeros(0)})
    averaged = begun(net)
    net.values["head.bias"] = torch.tensor([3.0])
    averaged.begin_step(net)
    averaged.update(net)
    assert averaged.values["head.bias"].tolist() == [3]


def test_a_weight_may_be_a_single_number():
    # As the gains of timm's dm_nfnet encoders.
    net = net_of(gain=torch.tensor(0.0))
    averaged = begun(net)
    net.values["gain"].fill_(11.0)
    averaged.update(net)
    assert float(averaged.values["gain"]) == pytest.approx(10)


def test_an_average_comes_back_from_its_state_and_goes_on():
    net = net_of(w=torch.zeros(3), b=torch.zeros(1))
    averaged = begun(net)
    for value in (1.0, 5.0, 2.0):
        net.values["w"].fill_(value)
        averaged.update(net)
    again = AveragedWeights()
    again.load_state({name: value.clone() for name, value in averaged.state().items()})
    for value in (4.0, -3.0):
        net.values["w"].fill_(value)
        averaged.update(net)
        again.update(net)
    assert averaged.updates == again.updates == 5
    assert averaged.state().keys() == again.state().keys()
    assert all(torch.equal(again.values[name], value) for name, value in averaged.values.items())
