import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from imsvd.bench.codes import autoencoder
from imsvd.bench.codes.autoencoder import (
    LATENTS,
    SparseAutoencoder,
    active_in_list,
    active_in_set,
    strongest,
)
from imsvd.bench.codes.quantizers import (
    PCAITQ,
    Code,
    DecodedQuantizer,
    IndependentKMeans,
    Mapped,
    Preparation,
    ProductQuantization,
    Quantizer,
    RandomProjections,
    ResidualKMeans,
    principal_axes,
)

MAKES: dict[str, Callable[[int], Quantizer]] = {
    "itq": lambda bits: PCAITQ(bits, normalize=True),
    "pq": lambda bits: ProductQuantization(bits, normalize=True, rotate=False),
    "pq-rotated": lambda bits: ProductQuantization(bits, normalize=False, rotate=True),
    "residual": lambda bits: ResidualKMeans(bits, normalize=True),
    "kmeans": lambda bits: IndependentKMeans(bits, normalize=True),
    "kmeans-16": lambda bits: IndependentKMeans(bits, normalize=False, units=16),
    "lsh": lambda bits: RandomProjections(bits, normalize=True),
    "sae": lambda bits: SparseAutoencoder(bits, as_set=False),
    "sae-set": lambda bits: SparseAutoencoder(bits, as_set=True),
}


def features(count: int = 600, width: int = 40, seed: int = 0) -> Tensor:
    """Points around a few centers, off the origin."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(12, width, generator=torch.Generator().manual_seed(9)) + 0.5
    chosen = torch.randint(12, (count,), generator=generator)
    return centers[chosen] + 0.5 * torch.randn(count, width, generator=generator)


@pytest.fixture(autouse=True)
def _short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoencoder, "STEPS", 30)
    monkeypatch.setattr(autoencoder, "BATCH", 64)


@pytest.mark.parametrize("name", list(MAKES))
def test_codes_have_the_bits_and_units_they_claim(name: str) -> None:
    code = MAKES[name](16)
    code.fit(features(), 0)
    codes = code.codes(features(seed=1))
    if code.units is None:
        assert codes.dtype == torch.bool
        assert 9 < code.bits <= 16
        return
    assert codes.shape == (600, len(code.units))
    assert int(codes.min()) >= 0
    assert (codes < torch.tensor(code.units)).all()
    assert code.bits == sum(math.log2(size) for size in code.units) == 16


@pytest.mark.parametrize("name", list(MAKES))
def test_the_same_seed_gives_the_same_code_and_another_seed_another(name: str) -> None:
    codes = []
    for seed in (3, 3, 4):
        code = MAKES[name](16)
        code.fit(features(), seed)
        codes.append(code.codes(features(seed=1)))
    assert torch.equal(codes[0], codes[1])
    assert not torch.equal(codes[0], codes[2])


@pytest.mark.parametrize("name", list(MAKES))
def test_an_image_is_nearer_to_its_group_than_to_others(name: str) -> None:
    points = features()
    code = MAKES[name](32)
    code.fit(points, 0)
    codes = code.codes(points)
    vectors = code.vectors(codes)
    centers = torch.randn(12, 40, generator=torch.Generator().manual_seed(9)) + 0.5
    group = torch.cdist(points, centers).argmin(1)
    for queries in (code.code_query(codes), code.query(points)):
        similarity = queries @ vectors.T
        nearest = similarity.fill_diagonal_(-torch.inf).argmax(1)
        assert (group[nearest] == group).double().mean() > 0.5


def test_principal_axes_are_those_of_the_covariance() -> None:
    points = features(2000, 6) * torch.tensor([5.0, 1, 1, 9, 1, 1])
    centered = points - points.mean(0)
    axes = principal_axes(centered, 3)
    torch.testing.assert_close(axes.T @ axes, torch.eye(3), atol=1e-5, rtol=0)
    _, _, right = torch.linalg.svd(centered, full_matrices=False)
    torch.testing.assert_close((axes * right[:3].T).sum(0).abs(), torch.ones(3))


def test_preparation_normalizes_then_centers() -> None:
    points = features(50, 4)
    prepare = Preparation(normalize=True)
    prepared = prepare.fit(points)
    unit = points / points.norm(dim=1, keepdim=True)
    torch.testing.assert_close(prepared, unit - unit.mean(0))
    torch.testing.assert_close(prepare(points[:3] * 7), prepared[:3])


def test_the_rotation_of_itq_is_orthogonal_and_its_loss_falls() -> None:
    code = PCAITQ(16, normalize=False)
    code.fit(features(), 0)
    identity = code.rotation @ code.rotation.T
    torch.testing.assert_close(identity, torch.eye(16), atol=1e-4, rtol=0)
    steps = zip(code.losses, code.losses[1:], strict=False)
    assert all(later <= earlier + 1e-5 for earlier, later in steps)
    assert code.losses[-1] < code.losses[0] - 1e-3


def test_sign_codes_compare_by_the_number_of_equal_bits() -> None:
    code = RandomProjections(8, normalize=True)
    code.fit(features(), 0)
    codes = code.codes(features())
    vectors = code.vectors(codes)
    equal = (codes[0] == codes[1]).sum()
    assert vectors[0] @ vectors[1] == 2 * equal - 8


@pytest.mark.parametrize("name", ["pq", "pq-rotated", "residual", "kmeans", "kmeans-16"])
def test_a_query_ranks_codes_by_the_distance_to_what_they_decode_to(name: str) -> None:
    code = MAKES[name](32)
    assert isinstance(code, DecodedQuantizer)
    code.fit(features(), 0)
    codes, queries = code.codes(features()), features(20, seed=2)
    points = code.decode(codes)
    assert len(points) == 600
    prepared = code.prepare(queries)
    distances = torch.cdist(prepared.double(), points.double()).square()
    similarity = code.query(queries) @ code.vectors(codes).T
    expected = (prepared.square().sum(1, keepdim=True) - distances) / 2
    torch.testing.assert_close(similarity.double(), expected, atol=1e-4, rtol=1e-4)
    between = torch.cdist(points.double(), points.double()).square()
    expected = (points.double().square().sum(1, keepdim=True) - between) / 2
    similarity = code.code_query(codes) @ code.vectors(codes).T
    torch.testing.assert_close(similarity.double(), expected, atol=1e-4, rtol=1e-4)


def test_distances_of_product_quantization_are_those_of_a_faiss_index() -> None:
    import faiss  # noqa: PLC0415

    code = ProductQuantization(24, normalize=True, rotate=False)  # slices of 14, padded by 2
    code.fit(features(), 0)
    bank, queries = features(), features(20, seed=2)
    index = faiss.IndexPQ(42, 3, 8)
    index.pq = code.quantizer
    index.is_trained = True
    pad = torch.nn.functional.pad
    index.add(pad(code.prepare(bank), (0, 2)).numpy())
    prepared = code.prepare(queries)
    distances, found = index.search(pad(prepared, (0, 2)).numpy(), 5)
    similarity = code.query(queries) @ code.vectors(code.codes(bank)).T
    ours = prepared.square().sum(1, keepdim=True) - 2 * similarity
    torch.testing.assert_close(
        ours.gather(1, torch.from_numpy(found)), torch.from_numpy(distances), atol=1e-4, rtol=1e-3
    )


def test_each_variable_of_residual_k_means_brings_the_sum_nearer() -> None:
    code = ResidualKMeans(32, normalize=False)
    points = features()
    code.fit(points, 0)
    codes, target = code.codes(points), code.prepare(points)
    errors = []
    for count in range(5):
        decoded = torch.zeros_like(target)
        for centroids, column in list(zip(code.centroids, codes.T, strict=True))[:count]:
            decoded += centroids[column]
        errors.append(float((target - decoded).square().sum(1).mean()))
    assert errors == sorted(errors, reverse=True)
    assert errors[4] < 0.5 * errors[0]
    torch.testing.assert_close(code.decode(codes), decoded)


@pytest.mark.parametrize("as_set", [False, True])
def test_exactly_as_many_latents_are_active_as_the_bits_allow(as_set: bool) -> None:
    code = SparseAutoencoder(64, as_set=as_set)
    code.fit(features(), 0)
    assert set(code.codes(features(seed=5)).sum(1).tolist()) == {code.active}
    assert code.active == (11 if as_set else 8)


@pytest.mark.parametrize("bits", [16, 32, 64, 128])
def test_one_more_active_latent_would_exceed_the_bits(bits: int) -> None:
    assert active_in_list(bits) * math.log2(LATENTS) == bits
    count = active_in_set(bits)
    assert math.comb(LATENTS, count) <= 2**bits < math.comb(LATENTS, count + 1)


def test_strongest_are_the_largest() -> None:
    latents = torch.tensor([[1.0, -3, 5, 2], [-1, -2, -3, -4]])
    expected = torch.tensor([[False, False, True, True], [True, True, False, False]])
    assert torch.equal(strongest(latents, 2), expected)


def test_the_autoencoder_learns_to_reconstruct(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = []
    for steps in (1, 200):
        monkeypatch.setattr(autoencoder, "STEPS", steps)
        code = SparseAutoencoder(64, as_set=False)
        points = features()
        code.fit(points, 0)
        errors.append(float(code.error(points)))
        torch.testing.assert_close(code.decoder.norm(dim=1), torch.ones(LATENTS))
    assert errors[1] < 0.6 * errors[0]


def test_the_auxiliary_loss_reaches_dead_latents_only_through_themselves() -> None:
    code = SparseAutoencoder(16, as_set=False)
    code.fit(features(), 0)
    for weight in (code.encoder, code.decoder, code.bias):
        weight.requires_grad_(True)
    batch = code.prepare(features(seed=3)) / code.scale
    _, active = code._loss(batch, torch.zeros(LATENTS, dtype=torch.bool))
    never = ~active.any(0)
    assert bool(never.any())
    plain, _ = code._loss(batch, torch.zeros_like(never))
    helped, _ = code._loss(batch, never)
    without, with_help = (torch.autograd.grad(v, code.encoder)[0] for v in (plain, helped))
    assert not without[never].any()
    assert with_help[never].any()
    torch.testing.assert_close(without[~never], with_help[~never])


def test_shared_latents_are_counted() -> None:
    code: Code = SparseAutoencoder(32, as_set=False)
    sets = torch.zeros(2, LATENTS, dtype=torch.bool)
    sets[0, [1, 2, 3, 4]] = True
    sets[1, [3, 4, 5, 6]] = True
    vectors = code.vectors(sets)
    assert vectors[0] @ vectors[1] == 2


def test_a_mapped_code_is_the_code_of_mapped_features() -> None:
    """Points that the mapping stretches are coded, asked for and compared as the stretched ones."""
    stretch = torch.linspace(0.1, 3, 40)
    mapped = Mapped(PCAITQ(8, normalize=False), lambda rows: rows * stretch)
    plain = PCAITQ(8, normalize=False)
    mapped.fit(features(), 0)
    plain.fit(features() * stretch, 0)
    asked = features(seed=1)
    assert mapped.units == plain.units
    assert torch.equal(mapped.codes(asked), plain.codes(asked * stretch))
    assert torch.equal(mapped.query(asked), plain.query(asked * stretch))
    codes = plain.codes(asked)
    assert torch.equal(mapped.vectors(codes), plain.vectors(codes))
    assert not torch.equal(mapped.codes(asked), plain.codes(asked))
