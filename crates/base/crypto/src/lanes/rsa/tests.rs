//! Compares the arithmetic with integers of any size. Moduli are at the edges of their size and differ
//! between lanes, and numbers go up to the promised bounds, which random keys and messages never reach.

use std::array::from_fn;

use num_bigint::BigUint;

use super::modular::{TABLE_SIZE, blinded_power};
use super::*;
use crate::lanes::testing::{Rng, on_lanes};

fn power_of_2(bits: usize) -> BigUint {
    BigUint::from(1u8) << bits
}

/// A number below a bound; often next to it, or next to zero, or with long runs of equal bits.
fn number_below(bound: &BigUint, rng: &mut Rng) -> BigUint {
    let bits = usize::try_from(bound.bits()).expect("a small number of bits");
    let number = match rng.next() % 8 {
        0 => bound - 1u8 - rng.next() % 3,
        1 => BigUint::from(rng.next() % 3),
        2 => power_of_2(rng.next() as usize % bits) - 1u8,
        3 => bound - power_of_2(rng.next() as usize % bits),
        4 => bound >> 1,
        _ => {
            let bytes: Vec<u8> = (0..bits / 8 + 8).map(|_| rng.bytes::<1>()[0]).collect();
            BigUint::from_bytes_le(&bytes)
        }
    };
    number % bound
}

/// Odd numbers of exactly this many bits: the largest, the smallest, those with the largest and smallest
/// lowest limb, and others.
fn moduli(bits: usize, rng: &mut Rng) -> Vec<BigUint> {
    let (low, high) = (power_of_2(bits - 1), power_of_2(bits));
    let mut moduli = vec![
        &high - 1u8,
        &low + 1u8,
        &low + power_of_2(52) - 1u8,
        &high - power_of_2(52) + 1u8,
        &high - power_of_2(52) - 1u8,
        &high - power_of_2(bits / 2) + 1u8,
        &low + power_of_2(51) + 1u8,
    ];
    while moduli.len() < 16 {
        moduli.push(&low + (number_below(&low, rng) | BigUint::from(1u8)));
    }
    moduli
}

fn bytes_of(number: &BigUint, bytes: usize) -> Vec<u8> {
    let number = number.to_bytes_be();
    let mut padded = vec![0; bytes - number.len()];
    padded.extend(number);
    padded
}

/// Converts numbers into limbs, with as many bytes as the limbs have.
fn interleaved<const M: usize>(numbers: &[BigUint; LANES]) -> Number<M> {
    let mut all = zero();
    for (lane, number) in numbers.iter().enumerate() {
        scatter(&mut all, lane, &bytes_of(number, M * BLOCK_LIMBS * LIMB_BITS / 8));
    }
    all
}

fn values<const M: usize>(numbers: &Number<M>) -> [BigUint; LANES] {
    assert!(numbers.iter().flatten().flat_map(|word| word.0).all(|limb| limb <= LIMB_MASK));
    from_fn(|lane| {
        let mut bytes = vec![0; M * BLOCK_LIMBS * LIMB_BITS / 8];
        gather(numbers, lane, &mut bytes);
        BigUint::from_bytes_be(&bytes)
    })
}

fn odd(n: &BigUint, blocks: usize) -> Odd {
    let limbs = blocks * BLOCK_LIMBS;
    let bytes = 512 * blocks / 8;
    let r_squared = power_of_2(2 * limbs * LIMB_BITS) % n;
    Odd::new(to_limbs(&bytes_of(n, bytes), limbs), to_limbs(&bytes_of(&r_squared, bytes), limbs))
}

/// Eight moduli of `M` blocks and the inputs of their lanes.
struct Setting<const M: usize> {
    n: [BigUint; LANES],
    r: BigUint,
    inverses_of_r: [BigUint; LANES],
    modulus: Modulus<M>,
    scratch: Scratch,
}

impl<const M: usize> Setting<M> {
    fn all(rng: &mut Rng) -> Vec<Self> {
        let moduli = moduli(512 * M, rng);
        let r = power_of_2(520 * M);
        (0..moduli.len())
            .map(|start| {
                let n: [BigUint; LANES] = from_fn(|lane| moduli[(start + lane * 3) % moduli.len()].clone());
                let odds = n.each_ref().map(|n| odd(n, M));
                let mut modulus = Modulus::new();
                modulus.set(odds.each_ref());
                let inverses_of_r = n.each_ref().map(|n| r.modinv(n).expect("an odd number"));
                Self { n, r: r.clone(), inverses_of_r, modulus, scratch: Scratch::new() }
            })
            .collect()
    }

    /// Numbers below a multiple of each modulus.
    fn numbers(&self, times: u32, rng: &mut Rng) -> [BigUint; LANES] {
        self.n.each_ref().map(|n| number_below(&(n * times), rng))
    }

    /// Checks that a reduction gave these numbers divided by R, below 2n.
    fn check_divided(&self, found: &Number<M>, expected: impl Fn(usize) -> BigUint) {
        for (lane, found) in values(found).iter().enumerate() {
            assert!(*found < &self.n[lane] * 2u8);
            let divided = expected(lane) * &self.inverses_of_r[lane] % &self.n[lane];
            assert_eq!(found % &self.n[lane], divided);
        }
    }
}

#[target_feature(enable = "avx512f,avx512ifma")]
fn products<const M: usize>() {
    let mut rng = Rng::new(M as u64);
    for mut setting in Setting::<M>::all(&mut rng) {
        for round in 0..40 {
            let (mut a, mut b) = (setting.numbers(2, &mut rng), setting.numbers(2, &mut rng));
            if round == 0 {
                // The largest of both in every lane.
                a = setting.n.each_ref().map(|n| n * 2u8 - 1u8);
                b = a.clone();
            }
            let (in_a, in_b) = (interleaved::<M>(&a), interleaved::<M>(&b));
            let Setting { modulus, scratch, .. } = &mut setting;
            let mut product = zero();
            multiply(&mut product, &in_a, &in_b, modulus, scratch);
            let mut same = in_a;
            multiply_by(&mut same, &in_b, modulus, scratch);
            assert_eq!(differing(&product, &same), 0);
            let mut squared = in_a;
            square(&mut squared, modulus, scratch);
            let mut quotient = zero();
            divide_by_r(&mut quotient, &in_a, modulus, scratch);
            let mut reduced = in_a;
            reduce_once(&mut reduced, &modulus.n, scratch);
            // The numbers that Garner's recombination multiplies.
            let mut difference = in_a;
            subtract(&mut difference, &in_b, &modulus.n);
            let mut of_difference = zero();
            multiply(&mut of_difference, &difference, &modulus.r_squared, modulus, scratch);

            setting.check_divided(&product, |lane| &a[lane] * &b[lane]);
            setting.check_divided(&squared, |lane| &a[lane] * &a[lane]);
            setting.check_divided(&quotient, |lane| a[lane].clone());
            for lane in 0..LANES {
                let n = &setting.n[lane];
                assert!(values(&quotient)[lane] <= *n);
                assert_eq!(values(&reduced)[lane], &a[lane] % n);
                assert_eq!(values(&difference)[lane], &a[lane] + n * 2u8 - &b[lane]);
            }
            let r = setting.r.clone();
            setting.check_divided(&of_difference, |lane| {
                (&a[lane] + &setting.n[lane] * 2u8 - &b[lane]) * &r * &r
            });
            // Checks which lanes differ, and that the others are left alone.
            let expected: u8 = (0..LANES).filter(|&lane| a[lane] != b[lane]).map(|lane| 1u8 << lane).sum();
            assert_eq!(differing(&in_a, &in_b), expected);
            let mut mixed = in_a;
            assign_in(0b0101_0011, &mut mixed, &in_b);
            for (lane, found) in values(&mixed).iter().enumerate() {
                assert_eq!(found, if 0b0101_0011 >> lane & 1 == 1 { &b[lane] } else { &a[lane] });
            }
        }
    }
}

/// Operations on a number of twice the modulus's size, as in the halves of a private operation.
#[target_feature(enable = "avx512f,avx512ifma")]
fn halves<const H: usize, const F: usize>() {
    let mut rng = Rng::new(100 + H as u64);
    for mut setting in Setting::<H>::all(&mut rng) {
        for round in 0..40 {
            // Anything below R·n, and the largest.
            let wide = setting.n.each_ref().map(|n| match round {
                0 => n * &setting.r - 1u8,
                _ => number_below(&(n * &setting.r), &mut rng),
            });
            let mut quotient = zero();
            divide_by_r(&mut quotient, &interleaved::<F>(&wide), &setting.modulus, &mut setting.scratch);
            setting.check_divided(&quotient, |lane| wide[lane].clone());

            let (a, low) = (setting.numbers(1, &mut rng), setting.numbers(1, &mut rng));
            let b = match round {
                0 => setting.n.each_ref().map(|n| n - 1u8),
                _ => setting.numbers(1, &mut rng),
            };
            let mut sum = zero::<F>();
            multiply_plus(
                &mut sum,
                &interleaved(&low),
                &interleaved(&a),
                &interleaved::<H>(&b),
                &mut setting.scratch,
            );
            for (lane, sum) in values(&sum).iter().enumerate() {
                assert_eq!(*sum, &low[lane] + &a[lane] * &b[lane]);
            }
        }
        // Powers with secret exponents: of two in turns, and one after the other.
        let digits = 512 * H / WINDOW_BITS;
        let mut both = [Exponentiation::<H>::new(digits), Exponentiation::<H>::new(digits)];
        let bases = both.each_mut().map(|one| {
            for number in [&mut one.modulus.n, &mut one.modulus.r_squared] {
                *number = zero();
            }
            let odds = setting.n.each_ref().map(|n| odd(n, H));
            one.modulus.set(odds.each_ref());
            let base = setting.numbers(1, &mut rng);
            // In Montgomery form, and not always below the modulus.
            let form = from_fn(|lane| {
                let n = &setting.n[lane];
                &base[lane] * &setting.r % n + n * (rng.next() % 2)
            });
            one.power = interleaved(&form);
            base
        });
        let exponents = both.each_mut().map(|one| {
            let exponents: [BigUint; LANES] = from_fn(|_| number_below(&power_of_2(512 * H), &mut rng));
            for (index, word) in one.digits.iter_mut().enumerate() {
                let shift = WINDOW_BITS * (digits - 1 - index);
                word.0 = from_fn(|lane| {
                    let digit = (&exponents[lane] >> shift) % TABLE_SIZE;
                    u64::try_from(digit).expect("a digit")
                });
            }
            exponents
        });
        let [a, b] = &mut both;
        secret_powers(a, b);
        let mut factor = zero();
        for ((one, bases), exponents) in both.iter_mut().zip(&bases).zip(&exponents) {
            one.finish(&mut factor);
            for (lane, power) in values(&one.power).iter().enumerate() {
                assert_eq!(*power, bases[lane].modpow(&exponents[lane], &setting.n[lane]));
            }
        }
    }
}

/// Powers with public exponents, which differ between lanes.
#[target_feature(enable = "avx512f,avx512ifma")]
fn public_powers<const F: usize>() {
    const EXPONENTS: [u32; 9] = [3, 5, 17, 65537, 0x7fff_ffff, 0x8000_0001, u32::MAX, 7, 0xaaaa_aaab];
    let mut rng = Rng::new(200 + F as u64);
    for (start, mut setting) in Setting::<F>::all(&mut rng).into_iter().enumerate() {
        let same = [EXPONENTS[start % EXPONENTS.len()]; LANES];
        for exponents in [from_fn(|lane| EXPONENTS[(start + lane) % EXPONENTS.len()]), same] {
            let (base, value) = (setting.numbers(1, &mut rng), setting.numbers(1, &mut rng));
            let Setting { n, modulus, scratch, .. } = &mut setting;
            let mut power = interleaved(&base);
            public_power(&mut power, &exponents, modulus, scratch);
            let mut blinded = interleaved(&value);
            blinded_power(&mut blinded, &mut interleaved(&base), &exponents, modulus, scratch);
            for lane in 0..LANES {
                let expected = base[lane].modpow(&exponents[lane].into(), &n[lane]);
                assert_eq!(values(&power)[lane], expected);
                assert_eq!(values(&blinded)[lane], expected * &value[lane] % &n[lane]);
            }
        }
    }
}

#[test]
fn products_are_those_of_integers() {
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn all() {
        products::<1>();
        products::<2>();
        products::<3>();
        products::<4>();
        products::<6>();
    }
    on_lanes(all);
}

#[test]
fn halves_are_those_of_integers() {
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn all() {
        halves::<1, 2>();
        halves::<2, 4>();
        halves::<3, 6>();
    }
    on_lanes(all);
}

#[test]
fn public_powers_are_those_of_integers() {
    #[target_feature(enable = "avx512f,avx512ifma")]
    fn all() {
        public_powers::<2>();
        public_powers::<4>();
        public_powers::<6>();
    }
    on_lanes(all);
}

/// Preparing a prime in constant time gives the same as the simple way.
#[test]
fn secret_moduli_are_prepared_like_public_ones() {
    let mut rng = Rng::new(300);
    for blocks in [1, 2, 3] {
        for n in moduli(512 * blocks, &mut rng) {
            let expected = odd(&n, blocks);
            let found = Odd::secret(&n.to_bytes_be(), 512 * blocks, blocks * BLOCK_LIMBS);
            assert_eq!(found.n, expected.n);
            assert_eq!(found.r_squared, expected.r_squared);
            assert_eq!(found.minus_inverse, expected.minus_inverse);
            assert_eq!(found.minus_inverse.wrapping_mul(found.n[0]) & LIMB_MASK, LIMB_MASK);
        }
    }
}

/// Bytes of all lengths, with and without leading zeros, through limbs and back, leaving no trace in the
/// other lanes.
#[test]
fn bytes_become_limbs_and_come_back() {
    let mut rng = Rng::new(400);
    for length in 0..=6 * BLOCK_LIMBS * LIMB_BITS / 8 {
        let bytes: Vec<u8> = (0..length).map(|_| rng.bytes::<1>()[0]).collect();
        let mut number = [[Word([LIMB_MASK; LANES]); BLOCK_LIMBS]; 6];
        let lane = length % LANES;
        scatter(&mut number, lane, &bytes);
        let limbs = to_limbs(&bytes, 6 * BLOCK_LIMBS);
        for (word, limb) in number.iter().flatten().zip(limbs.iter()) {
            for other in 0..LANES {
                assert_eq!(word.0[other], if other == lane { *limb } else { LIMB_MASK });
            }
        }
        let mut back = vec![0x55; length];
        gather(&number, lane, &mut back);
        assert_eq!(back, bytes);
    }
}
