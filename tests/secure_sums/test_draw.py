"""A round's seed: in it are the server's committed part and every client's."""

import os

import pytest

from randquant.secure_sums import HASH_BYTES, Draw, ProtocolError
from randquant.secure_sums.terms import PART_BYTES, check_draw

SESSION = b"run, round"


def drawn(clients):
    draw = Draw(SESSION)
    commitment, parts = draw.commitment, {c: os.urandom(PART_BYTES) for c in clients}
    for client, part in parts.items():
        draw.add(client, part)
    return commitment, parts, *draw.close()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 33])
def test_every_client_finds_the_same_seed(count):
    commitment, parts, seed, proofs = drawn(range(10, 10 + count))
    assert {check_draw(SESSION, commitment, c, parts[c], proofs[c]) for c in parts} == {seed}
    depth = (count - 1).bit_length()
    assert max(map(len, proofs.values())) == PART_BYTES + depth * (1 + HASH_BYTES)


def test_a_seed_that_the_server_chooses_after_seeing_parts_is_refused():
    """It reveals another part than it committed to."""
    commitment, parts, _, proofs = drawn(range(5))
    own = os.urandom(PART_BYTES)
    with pytest.raises(ProtocolError, match="committed to before it saw"):
        check_draw(SESSION, commitment, 2, parts[2], own + proofs[2][PART_BYTES:])


def test_no_part_can_be_left_out_or_changed():
    """Whatever a server changes, the client finds another seed, or refuses."""
    commitment, parts, seed, proofs = drawn(range(6))
    others = {
        check_draw(SESSION, commitment, 2, os.urandom(PART_BYTES), proofs[2]),
        check_draw(SESSION, commitment, 2, parts[2], proofs[3]),
        check_draw(SESSION, commitment, 3, parts[2], proofs[2]),
        check_draw(SESSION, commitment, 2, parts[2], proofs[2][: PART_BYTES + 33]),
    }
    for place in range(PART_BYTES, len(proofs[2])):
        if (place - PART_BYTES) % 33:
            changed = bytearray(proofs[2])
            changed[place] ^= 1
            others.add(check_draw(SESSION, commitment, 2, parts[2], bytes(changed)))
    assert seed not in others
    with pytest.raises(ProtocolError, match="committed"):
        check_draw(b"another round", commitment, 2, parts[2], proofs[2])


@pytest.mark.parametrize("proof", [b"", bytes(31), bytes(33), bytes(32 + 65 * 33)])
def test_what_is_no_proof_is_refused(proof):
    with pytest.raises(ProtocolError, match="Expected the proof of a round's seed"):
        check_draw(SESSION, bytes(32), 1, bytes(32), proof)


def test_parts_have_one_size():
    for size in (0, 31, 33):
        with pytest.raises(ProtocolError, match=rf"in 32 bytes, got {size}\."):
            Draw(SESSION).add(1, bytes(size))


def seed_of(session=SESSION, own=bytes(32), parts=((1, bytes(32)), (2, bytes(32)), (3, bytes(32)))):
    draw = Draw(session)
    draw._part = own
    for client, part in parts:
        draw.add(client, part)
    seed, proofs = draw.close()
    commitment = draw.commitment
    assert {check_draw(session, commitment, c, part, proofs[c]) for c, part in parts} <= {seed}
    return seed, commitment


def test_everything_that_goes_into_a_seed_changes_it():
    """The session, the server's part, each client's part and number, and how many there are."""
    changed, first = bytes([*bytes(31), 1]), ((1, bytes(32)), (2, bytes(32)), (3, bytes(32)))
    seeds = [seed_of(), seed_of(session=b"run, round 2"), seed_of(own=changed)]
    for place in range(3):
        others = list(first)
        others[place] = (others[place][0], changed)
        seeds.append(seed_of(parts=others))
        others[place] = (others[place][0] + 7, bytes(32))
        seeds.append(seed_of(parts=others))
        seeds.append(seed_of(parts=first[:place]))
    assert len({seed for seed, _ in seeds}) == len(seeds)
    # A commitment is to the server's part alone: it is sent before there are others.
    assert len({commitment for _, commitment in seeds}) == 3
    assert seed_of(parts=first[::-1]) == seeds[0]  # whoever came first


def test_two_draws_of_the_same_clients_have_seeds_of_their_own():
    """By the server's part, which it draws: nobody else can foresee a seed."""
    draws = [Draw(SESSION) for _ in range(20)]
    for draw in draws:
        draw.add(1, bytes(32))
    assert len({draw.close()[0] for draw in draws}) == len({d.commitment for d in draws}) == 20
