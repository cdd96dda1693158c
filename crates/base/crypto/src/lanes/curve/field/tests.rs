//! Compares with integers of any size, with limbs at their bounds.

use num_bigint::BigUint;

use super::*;
use crate::lanes::testing::{Rng, on_lanes};

fn p() -> BigUint {
    (BigUint::from(1u8) << 255) - 19u8
}

fn value(limbs: &Limbs) -> BigUint {
    limbs.iter().rev().fold(BigUint::ZERO, |sum, &limb| (sum << RADIX_BITS) + limb)
}

fn limbs_of(mut value: BigUint) -> Limbs {
    let mut limbs = [0; 5];
    for limb in &mut limbs {
        *limb = u64::try_from(&value % (1u64 << RADIX_BITS)).expect("51 bits");
        value >>= RADIX_BITS;
    }
    limbs
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn gather(lanes: &[Limbs; 8]) -> Fe {
    let mut fe = Fe::splat(&ZERO);
    for (i, limb) in fe.0.iter_mut().enumerate() {
        *limb = load(&lanes.map(|limbs| limbs[i]));
    }
    fe
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn scatter(fe: &Fe) -> [Limbs; 8] {
    let limbs = fe.0.map(|limb| store(limb));
    std::array::from_fn(|lane| limbs.map(|limb| limb[lane]))
}

/// Elements whose limbs are below `bound`: the edges, elements next to multiples of p, and random ones.
fn samples(bound: u64, rng: &mut Rng) -> Vec<Limbs> {
    let mut samples = vec![ZERO, ONE, D, D2, SQRT_MINUS_ONE, [bound - 1; 5], [(1 << 51) - 1; 5]];
    for i in 0..5 {
        let (mut alone, mut except) = ([0; 5], [bound - 1; 5]);
        alone[i] = bound - 1;
        except[i] = 0;
        samples.extend([alone, except]);
    }
    for offset in 0..4u8 {
        samples.extend([limbs_of(p() - offset), limbs_of(p() + offset)]);
    }
    // 2p with limbs that overlap.
    if bound > 1 << 51 {
        let mut twice = [0; 5];
        for (twice, limb) in twice.iter_mut().zip(limbs_of(p())) {
            *twice = (2 * limb).min(bound - 1);
        }
        samples.push(twice);
    }
    while samples.len() < 400 {
        samples.push(std::array::from_fn(|_| {
            let limb = rng.next() % bound;
            // Often at an edge.
            match rng.next() % 8 {
                0 => bound - 1 - limb % 3,
                1 => limb % 3,
                2 => (1 << 51) - 1 + limb % 3,
                _ => limb,
            }
            .min(bound - 1)
        }));
    }
    samples
}

fn eights(samples: &[Limbs]) -> impl Iterator<Item = [Limbs; 8]> {
    samples.as_chunks::<8>().0.iter().copied()
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn arithmetic() {
    let mut rng = Rng::new(1);
    let samples = samples(1 << 52, &mut rng);
    for shift in 0..25 {
        let mut others = samples.clone();
        others.rotate_left(shift * 13);
        for (a, b) in eights(&samples).zip(eights(&others)) {
            let (va, vb) = (gather(&a), gather(&b));
            let product = va.mul_wide(&vb);
            let sum = scatter(&product.add(&vb.widen()).carry());
            let difference = scatter(&vb.widen().sub(&product).carry());
            let four = scatter(&product.double().double().carry());
            let square = va.square_wide();
            let small = [1, 121_665, u32::MAX].map(|factor| scatter(&va.mul_small(factor).carry()));
            let mixed = scatter(&square.double().add(&product).sub(&va.square_wide()).carry());
            let product = scatter(&product.carry());
            let square = scatter(&square.carry());
            for lane in 0..8 {
                let (a, b) = (value(&a[lane]), value(&b[lane]));
                let ab = &a * &b % p();
                for limbs in [sum, difference, four, mixed, product, square].map(|lanes| lanes[lane]) {
                    assert!(limbs.iter().all(|&limb| limb < TIGHT));
                }
                for (small, factor) in small.iter().zip([1, 121_665, u32::MAX]) {
                    assert_eq!(value(&small[lane]) % p(), &a * factor % p());
                }
                assert_eq!(value(&product[lane]) % p(), ab);
                assert_eq!(value(&square[lane]) % p(), &a * &a % p());
                assert_eq!(value(&sum[lane]) % p(), (&ab + &b) % p());
                assert_eq!((value(&difference[lane]) + &ab) % p(), &b % p());
                assert_eq!(value(&four[lane]) % p(), &ab * 4u8 % p());
                assert_eq!(value(&mixed[lane]) % p(), (&a * &a + &ab) % p());
            }
        }
    }
}

#[test]
fn products_and_sums_are_those_of_integers() {
    on_lanes(arithmetic);
}

/// Sums before their carry, with limbs up to the largest allowed value.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn sums() {
    let mut rng = Rng::new(8);
    let minuends = samples(WIDE - BIAS[1].cast_unsigned(), &mut rng);
    let subtrahends = samples(SUBTRAHEND, &mut rng);
    let halves = samples(WIDE / 2, &mut rng);
    for shift in 0..25 {
        let mut subtrahends = subtrahends.clone();
        subtrahends.rotate_left(shift * 13);
        let mut others = halves.clone();
        others.rotate_left(shift * 11);
        for (a, b) in eights(&minuends).zip(eights(&subtrahends)) {
            let difference = scatter(&Wide(gather(&a).0).sub(&Wide(gather(&b).0)).carry());
            for lane in 0..8 {
                assert!(difference[lane].iter().all(|&limb| limb < TIGHT));
                assert_eq!((value(&difference[lane]) + value(&b[lane])) % p(), value(&a[lane]) % p());
            }
        }
        for (a, b) in eights(&halves).zip(eights(&others)) {
            let (a_wide, b_wide) = (Wide(gather(&a).0), Wide(gather(&b).0));
            let (sum, double) = (scatter(&a_wide.add(&b_wide).carry()), scatter(&a_wide.double().carry()));
            for lane in 0..8 {
                assert!(sum[lane].iter().chain(&double[lane]).all(|&limb| limb < TIGHT));
                assert_eq!(value(&sum[lane]) % p(), (value(&a[lane]) + value(&b[lane])) % p());
                assert_eq!(value(&double[lane]) % p(), value(&a[lane]) * 2u8 % p());
            }
        }
    }
    for lanes in eights(&samples(WIDE, &mut rng)) {
        let carried = scatter(&Wide(gather(&lanes).0).carry());
        for (carried, limbs) in carried.iter().zip(&lanes) {
            assert!(carried.iter().all(|&limb| limb < TIGHT));
            assert_eq!(value(carried) % p(), value(limbs) % p());
        }
    }
}

#[test]
fn sums_may_reach_their_bounds() {
    on_lanes(sums);
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn representatives() {
    let mut rng = Rng::new(2);
    for lanes in eights(&samples(TIGHT, &mut rng)) {
        let fe = gather(&lanes);
        let canonical = fe.canonical();
        let negated = scatter(&fe.negate(0b1010_0110));
        let words = canonical.canonical_words().map(|word| store(word));
        let odd = canonical.canonical_is_odd();
        assert_eq!(fe.equals(&canonical), 0xff);
        assert_eq!(fe.equals(&canonical.widen().add(&gather(&[ONE; 8]).widen()).carry()), 0);
        let again = scatter(&Fe::from_words(&words));
        for lane in 0..8 {
            let expected = value(&lanes[lane]) % p();
            assert_eq!(scatter(&canonical)[lane], limbs_of(expected.clone()));
            assert_eq!(again[lane], limbs_of(expected.clone()));
            assert_eq!(odd >> lane & 1 == 1, expected.bit(0));
            let bytes: Vec<u8> = words.iter().flat_map(|word| word[lane].to_le_bytes()).collect();
            assert_eq!(BigUint::from_bytes_le(&bytes), expected);
            assert!(negated[lane].iter().all(|&limb| limb < 1 << 52));
            let sum = (value(&negated[lane]) + &expected) % p();
            if 0b1010_0110 >> lane & 1 == 1 {
                assert_eq!(sum, BigUint::ZERO);
            } else {
                assert_eq!(negated[lane], lanes[lane]);
            }
        }
    }
}

#[test]
fn representatives_are_unique() {
    on_lanes(representatives);
}

/// Words from 2^255 − 19 on, and with the highest bit.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn decoding() {
    let mut words = [[u64::MAX; 8]; 4];
    words[0] = std::array::from_fn(|lane| u64::MAX - 18 - 3 + lane as u64);
    words[3][..4].fill(u64::MAX >> 1);
    let canonical = scatter(&Fe::from_words(&words).canonical());
    for lane in 0..8 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word[lane].to_le_bytes()).collect();
        let mut expected = BigUint::from_bytes_le(&bytes);
        expected.set_bit(255, false);
        assert_eq!(value(&canonical[lane]), expected % p());
    }
}

#[test]
fn every_string_decodes() {
    on_lanes(decoding);
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn inverses_and_roots() {
    let mut rng = Rng::new(3);
    let samples = samples(TIGHT, &mut rng);
    let (p_minus_2, half) = (p() - 2u8, (p() - 1u8) >> 1);
    let mut others = samples.clone();
    others.rotate_left(7);
    let mut squares = [0; 2];
    for (u, v) in eights(&samples).zip(eights(&others)).take(30) {
        let inverses = scatter(&invert(&gather(&v)));
        let ([_, roots], [_, exist]) =
            sqrt_ratios(&[gather(&[ONE; 8]), gather(&u)], &[gather(&[ONE; 8]), gather(&v)]);
        let roots = scatter(&roots);
        for lane in 0..8 {
            let (u, v) = (value(&u[lane]) % p(), value(&v[lane]) % p());
            assert_eq!(value(&inverses[lane]) % p(), v.modpow(&p_minus_2, &p()));
            if v == BigUint::ZERO {
                continue;
            }
            let ratio = &u * v.modpow(&p_minus_2, &p()) % p();
            let is_square = ratio.modpow(&half, &p()) <= BigUint::from(1u8);
            assert_eq!(exist >> lane & 1 == 1, is_square);
            squares[usize::from(is_square)] += 1;
            if is_square {
                assert_eq!(value(&roots[lane]).modpow(&BigUint::from(2u8), &p()), ratio);
            }
        }
    }
    assert!(squares.iter().all(|&count| count > 50), "both kinds occur");
}

#[test]
fn inverses_and_roots_are_those_of_integers() {
    on_lanes(inverses_and_roots);
}

#[test]
fn constants_are_those_of_the_curve() {
    let inverse = BigUint::from(121_666u32).modpow(&(p() - 2u8), &p());
    let d = (p() - 121_665u32) * inverse % p();
    assert_eq!(value(&D), d);
    assert_eq!(value(&D2), d * 2u8 % p());
    assert_eq!(value(&SQRT_MINUS_ONE).modpow(&BigUint::from(2u8), &p()), p() - 1u8);
    assert!(!value(&SQRT_MINUS_ONE).bit(0));
}
