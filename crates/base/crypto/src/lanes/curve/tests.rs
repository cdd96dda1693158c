//! Compares with the library, at edge cases and at random.

use curve25519_dalek::{EdwardsPoint, Scalar};
use num_bigint::{BigInt, BigUint, Sign};

use super::*;
use crate::hash::sha512;
use crate::lanes::testing::{Rng, on_lanes};

#[test]
fn hashes_are_those_of_the_library() {
    if !crate::lanes::ifma() {
        return;
    }
    let data: Vec<u8> = (0..2000u32).map(|i| (i * 7 % 251) as u8).collect();
    let mut messages = Vec::new();
    for length in 0..=MAX_LANE_MESSAGE_BYTES + 20 {
        let (a, rest) = data[..length].split_at(length / 3);
        let (b, c) = rest.split_at(length / 5);
        messages.push([a, b, c]);
    }
    // Short and long ones side by side, and a group that is not full.
    let mixed: Vec<_> = (0..=1044).map(|i| messages[i * 521 % 1045]).collect();
    messages.extend(mixed);
    for (hash, parts) in sha512_each(&messages, true).iter().zip(&messages) {
        assert_eq!(hash, sha512(&parts.concat()).as_bytes());
    }
    assert!(sha512_each(&[], false).is_empty());
}

/// Scalars at the edges of digits, and random ones.
fn scalars(rng: &mut Rng) -> Vec<Scalar> {
    let mut scalars = vec![Scalar::ZERO, Scalar::ONE, -Scalar::ONE, -Scalar::from(2u8)];
    for bits in [KEY_BITS, BASE_BITS] {
        for window in 0..253 / bits {
            let mut power = Scalar::ONE;
            for _ in 0..window * bits {
                power += power;
            }
            for digit in [1, (1 << (bits - 1)) - 1, 1 << (bits - 1), (1 << (bits - 1)) + 1, (1 << bits) - 1] {
                scalars.push(power * Scalar::from(digit as u64));
                scalars.push(power * Scalar::from(digit as u64) - Scalar::ONE);
            }
        }
    }
    while scalars.len() % 8 != 0 || scalars.len() < 600 {
        scalars.push(Scalar::from_bytes_mod_order_wide(&rng.bytes()));
    }
    scalars
}

#[test]
fn equations_with_edge_scalars_hold() {
    if !crate::lanes::ifma() {
        return;
    }
    let mut rng = Rng::new(4);
    let scalars = scalars(&mut rng);
    let mut others = scalars.clone();
    others.rotate_left(101);
    let a = EdwardsPoint::mul_base(&Scalar::from_bytes_mod_order_wide(&rng.bytes()));
    let torsion = curve25519_dalek::constants::EIGHT_TORSION;
    for shift in [0, 1] {
        let points: Vec<_> = (0..scalars.len()).map(|i| a + torsion[i * shift % 8]).collect();
        let keys: Vec<_> = points.iter().map(|point| point.compress().to_bytes()).collect();
        let results: Vec<_> = (0..scalars.len())
            .map(|i| EdwardsPoint::mul_base(&scalars[i]) - points[i] * others[i])
            .map(|point| point.compress().to_bytes())
            .collect();
        let mut wrong = results.clone();
        for (i, wrong) in wrong.iter_mut().enumerate() {
            wrong[i % 32] ^= 1 << (i % 8);
        }
        for (rs, expected) in [(&results, true), (&wrong, false)] {
            let equations: Vec<_> = (0..scalars.len())
                .map(|i| Equation {
                    a: &keys[i],
                    r: &rs[i],
                    s: scalars[i].as_bytes(),
                    k: others[i].as_bytes(),
                })
                .collect();
            let mut verdicts = vec![!expected; equations.len()];
            check_equations(&equations, &mut verdicts);
            assert!(verdicts.iter().all(|&verdict| verdict == expected));
        }
    }
}

#[test]
fn base_multiples_are_those_of_the_library() {
    if !crate::lanes::ifma() {
        return;
    }
    let mut rng = Rng::new(6);
    let mut integers: Vec<_> = scalars(&mut rng).iter().map(Scalar::to_bytes).collect();
    // Not reduced, up to 2^253 − 1.
    let mut highest = [0xff; 32];
    highest[31] = 0x1f;
    integers.push(highest);
    for _ in 0..50 {
        let mut integer: [u8; 32] = rng.bytes();
        integer[31] &= 0x1f;
        integers.push(integer);
    }
    let expected: Vec<_> = integers
        .iter()
        .map(|integer| EdwardsPoint::mul_base(&Scalar::from_bytes_mod_order(*integer)).compress().to_bytes())
        .collect();
    assert_eq!(base_multiples(&integers), expected);
    for size in 0..=2 * GROUPS * LANES + 1 {
        assert_eq!(base_multiples(&integers[..size]), expected[..size]);
    }
}

#[test]
fn equations_with_tables_hold() {
    if !crate::lanes::ifma() {
        return;
    }
    let mut rng = Rng::new(7);
    let scalars = scalars(&mut rng);
    let points: Vec<_> = (0..5u64)
        .map(|i| EdwardsPoint::mul_base(&(Scalar::from(rng.next()) * Scalar::from(i & 3))))
        .collect();
    let tables: Vec<_> = points.iter().map(KeyTables::new).collect();
    for offset in [3, 101] {
        let mut rs: Vec<_> = (0..scalars.len())
            .map(|i| {
                let c = scalars[(i + offset) % scalars.len()];
                (EdwardsPoint::mul_base(&scalars[i]) + points[i % 5] * c).compress().to_bytes()
            })
            .collect();
        for wrong in rs.iter_mut().skip(1).step_by(3) {
            wrong[rng.next() as usize % 32] ^= 1 << (rng.next() % 8);
        }
        let equations: Vec<_> = (0..scalars.len())
            .map(|i| TableEquation {
                a: &tables[i % 5],
                r: &rs[i],
                s: scalars[i].as_bytes(),
                c: scalars[(i + offset) % scalars.len()].as_bytes(),
            })
            .collect();
        let expected: Vec<_> = (0..scalars.len()).map(|i| i % 3 != 1).collect();
        for size in [1, 2, 7, 8, 9, 63, 64, 65, scalars.len()] {
            for (equations, expected) in equations.chunks(size).zip(expected.chunks(size)).take(20) {
                let mut verdicts = vec![false; equations.len()];
                check_table_equations(equations, &mut verdicts);
                assert_eq!(verdicts, expected);
            }
        }
    }
}

/// Lanes must not affect each other: a string that is not a point, at any place, changes no other result.
#[test]
fn strings_that_are_no_points_disturb_nobody() {
    if !crate::lanes::ifma() {
        return;
    }
    let mut rng = Rng::new(5);
    for size in 1..=GROUPS * LANES + 9 {
        let keys: Vec<[u8; 32]> = (0..size)
            .map(|_| {
                if rng.next().is_multiple_of(2) {
                    rng.bytes()
                } else {
                    EdwardsPoint::mul_base(&Scalar::from(rng.next())).compress().to_bytes()
                }
            })
            .collect();
        let scalars: Vec<_> = (0..size).map(|_| Scalar::from_bytes_mod_order_wide(&rng.bytes())).collect();
        let expected: Vec<_> = keys
            .iter()
            .zip(&scalars)
            .map(|(key, scalar)| {
                let point = curve25519_dalek::edwards::CompressedEdwardsY(*key).decompress()?;
                Some((EdwardsPoint::mul_base(scalar) - point * scalar).compress().to_bytes())
            })
            .collect();
        let rs: Vec<_> = expected.iter().map(|r| r.unwrap_or([1; 32])).collect();
        let equations: Vec<_> = (0..size)
            .map(|i| Equation { a: &keys[i], r: &rs[i], s: scalars[i].as_bytes(), k: scalars[i].as_bytes() })
            .collect();
        let mut verdicts = vec![false; size];
        check_equations(&equations, &mut verdicts);
        assert_eq!(verdicts, expected.iter().map(Option::is_some).collect::<Vec<_>>());
    }
}

/// Digits add up to their integer again, also at the edges, and never point beyond the end of a table.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn digits<const BITS: u32>(integers: &[[u8; 32]]) {
    let half = 1i64 << (BITS - 1);
    for integers in integers.as_chunks::<8>().0 {
        let digits = Digits::<BITS>::new(integers);
        let mut sums = [BigInt::ZERO; LANES];
        for window in (0..Digits::<BITS>::WINDOWS).rev() {
            let found = vector::store(digits.get(window)).map(u64::cast_signed);
            for (sum, digit) in sums.iter_mut().zip(found) {
                let is_highest = window + 1 == Digits::<BITS>::WINDOWS;
                assert!(if is_highest {
                    (0..=half).contains(&digit)
                } else {
                    (-half..half).contains(&digit)
                });
                *sum = (&*sum << BITS) + digit;
            }
        }
        for (sum, integer) in sums.into_iter().zip(integers) {
            assert_eq!(sum, BigInt::from_bytes_le(Sign::Plus, integer));
        }
    }
}

#[test]
fn digits_make_up_their_integers() {
    fn integers() -> Vec<[u8; 32]> {
        let mut rng = Rng::new(9);
        let bound = BigUint::from(1u8) << 253;
        let mut integers = vec![BigUint::ZERO, &bound - 1u8];
        for bits in [5, 8, 10] {
            // All digits are at an edge, or next to it.
            for digit in
                [1u64, (1 << (bits - 1)) - 1, 1 << (bits - 1), (1 << (bits - 1)) + 1, (1 << bits) - 1]
            {
                let all = (0..253 / bits).fold(BigUint::ZERO, |sum, _| (sum << bits) + digit);
                // With the halves added all words of the second are full, and all words of the third
                // overflow.
                integers.extend([all.clone(), &bound - 1u8 - &all, &bound - all]);
            }
        }
        integers.extend((0..253).flat_map(|bit| {
            let power = BigUint::from(1u8) << bit;
            [&power - 1u8, power]
        }));
        while integers.len() < 1000 {
            integers.push(BigUint::from_bytes_le(&rng.bytes::<32>()) >> 3);
        }
        let bytes = |integer: BigUint| {
            let mut bytes = integer.to_bytes_le();
            bytes.resize(32, 0);
            bytes.try_into().expect("below 2^253")
        };
        integers.into_iter().map(bytes).collect()
    }
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
    fn all() {
        let integers = integers();
        digits::<KEY_BITS>(&integers);
        digits::<QUARTER_BITS>(&integers);
        digits::<BASE_BITS>(&integers);
    }
    on_lanes(all);
}

#[test]
#[should_panic(expected = "integers below 2^253")]
fn larger_integers_have_no_digits() {
    let mut integers = [[0; 32]; LANES];
    integers[3][31] = 1 << 5;
    let _ = Digits::<KEY_BITS>::new(&integers);
}

/// Encodings around 0 and p with both signs, of small order, of arbitrary points and of non-points: they are
/// points or not exactly as in the library, which also accepts non-canonical encodings.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma")]
fn encodings() {
    let mut rng = Rng::new(10);
    let mut all: Vec<[u8; 32]> = Vec::new();
    for low in 0..=u8::MAX {
        for (middle, high) in [(0, 0), (0, 0x80), (0xff, 0x7f), (0xff, 0xff)] {
            let mut encoding = [middle; 32];
            (encoding[0], encoding[31]) = (low, high);
            all.push(encoding);
        }
    }
    for point in curve25519_dalek::constants::EIGHT_TORSION {
        for sign in [0, 0x80] {
            let mut encoding = point.compress().to_bytes();
            encoding[31] ^= sign;
            all.push(encoding);
        }
    }
    while all.len() < 1800 {
        all.push(rng.bytes());
    }
    // Neighbours in every lane, in one group and in two.
    let mut points = 0;
    for start in 0..all.len() {
        let strings: [[u8; 32]; 2 * LANES] = from_fn(|i| all[(start + i * 41) % all.len()]);
        let words = [&strings[..LANES], &strings[LANES..]].map(|strings| words_of(strings.iter()));
        let both = decompress(&words);
        let [first] = decompress(&[words[0]]);
        for (group, (x, y, exist)) in [both[0], both[1], first].into_iter().enumerate() {
            let mut encodings = [[0; 32]; LANES];
            write_words(&point::encode(&x.canonical(), &y.canonical()), &mut encodings);
            for lane in 0..LANES {
                let string = strings[group % 2 * LANES + lane];
                let point = curve25519_dalek::edwards::CompressedEdwardsY(string).decompress();
                assert_eq!(exist >> lane & 1 == 1, point.is_some());
                if let Some(point) = point {
                    assert_eq!(encodings[lane], point.compress().to_bytes());
                    points += 1;
                }
            }
        }
    }
    assert!(points > all.len() * 3, "more than an eighth are points");
}

#[test]
fn encodings_are_points_like_those_of_the_library() {
    on_lanes(encodings);
}
