import numpy as np

from casa.watch.highlights import APART, MOST, disagreements, rewards, value_changes
from casa.watch.record import Moment, Part


def moment(v=0.0, pi=None, q=None, reward=0.0, episode=0, over=""):
    arrays = (None if x is None else np.array(x, float) for x in (pi, q))
    return Moment(None, v, *arrays, None, (0,), reward, 0.0, episode, over)


def test_the_largest_changes_of_v_come_first_and_one_event_counts_once():
    values = np.zeros(100)
    values[40:] += 5
    values[41:] += 4  # the same event
    values[70:] -= 3
    assert value_changes([moment(v) for v in values]) == [40, 70]
    noisy = [moment(v) for v in np.random.default_rng(0).normal(size=500)]
    found = value_changes(noisy)
    assert len(found) == MOST and min(np.diff(found)) >= APART


def test_a_new_episode_is_no_change_of_v():
    moments = [moment(1.0), moment(None, over="terminated"), moment(9.0, episode=1), moment(9.5, episode=1)]
    assert value_changes(moments) == [3]


def test_disagreement_is_by_part_and_ties_agree():
    one = [Part("", ("a", "b"))]
    assert disagreements([moment(pi=[0.9, 0.1], q=[1, 2]), moment(pi=[0.1, 0.9], q=[1, 2])], one) == [0]
    ties = [moment(pi=[0.5, 0.5], q=[1, 2]), moment(pi=[0.9, 0.1], q=[2, 2]), moment(pi=[1, 0])]
    assert disagreements(ties, one) == []
    two = [Part("x", ("a", "b")), Part("y", ("c", "d", "e"))]
    assert disagreements([moment(pi=[0.9, 0.1, 0.2, 0.3, 0.5], q=[2, 1, 0, 9, 1])], two) == [0]
    assert disagreements([moment(pi=[0.9, 0.1, 0.2, 0.5, 0.3], q=[2, 1, 0, 9, 1])], two) == []


def test_rewards_at_nearly_every_step_are_nothing_to_jump_to():
    assert rewards([moment(), moment(reward=1), moment(), moment(reward=-1)]) == [1, 3]
    assert rewards([moment(reward=1)] * 9 + [moment()]) == []
