//! Greatest common divisors and inverses modulo an odd number, fast and in variable time.
//!
//! This is the algorithm of Bernstein and Yang, "Fast constant-time gcd computation and modular inversion"
//! (2019), in the variable-time variant of Pieter Wuille, which computes 62 division steps at once on the low
//! words, then applies them to the whole numbers as one 2×2 matrix. A gcd of 2048-bit numbers takes about ten
//! microseconds; the constant-time gcd of cryptographic libraries takes five hundred.
//!
//! Time depends on the arguments: pass only public or freshly blinded values.

/// Bits in a limb. Numbers are sums of `limb[i] << (62 * i)`; all limbs but the last are in 0..2^62, the last
/// is signed.
const LIMB_BITS: u32 = 62;
const LIMB_MASK: u64 = u64::MAX >> 2;

/// An odd modulus, prepared.
pub(crate) struct OddModulus {
    limbs: Vec<i64>,
    /// Inverse of the modulus modulo 2^62.
    inverse62: u64,
    bytes: usize,
}

/// The matrix of 62 division steps, scaled by 2^62.
struct Transition {
    u: i64,
    v: i64,
    q: i64,
    r: i64,
}

/// Does 62 division steps on the low limbs of f and g.
fn divsteps(eta: &mut i64, f: i64, g: i64) -> Transition {
    let (mut u, mut v, mut q, mut r) = (1u64, 0u64, 0u64, 1u64);
    let (mut f, mut g) = (f as u64, g as u64);
    let mut left = LIMB_BITS;
    loop {
        // A sentinel bit at position `left`, so that the count of zeros never exceeds the steps left.
        let zeros = (g | (u64::MAX << left)).trailing_zeros();
        g >>= zeros;
        u <<= zeros;
        v <<= zeros;
        *eta -= i64::from(zeros);
        left -= zeros;
        if left == 0 {
            break;
        }
        // Now f and g are odd. Cancel as many low bits of g as both the remaining steps and eta allow.
        let multiple = if *eta < 0 {
            *eta = -*eta;
            (f, g) = (g, f.wrapping_neg());
            (u, q) = (q, u.wrapping_neg());
            (v, r) = (r, v.wrapping_neg());
            let limit = (*eta + 1).min(i64::from(left)) as u32;
            let mask = (u64::MAX >> (64 - limit)) & 63;
            // −g/f modulo 64, since f·(f² − 2) = −1/f modulo 64 for odd f.
            f.wrapping_mul(g).wrapping_mul(f.wrapping_mul(f).wrapping_sub(2)) & mask
        } else {
            let limit = (*eta + 1).min(i64::from(left)) as u32;
            let mask = (u64::MAX >> (64 - limit)) & 15;
            // 1/f modulo 16.
            let inverse = f.wrapping_add((f.wrapping_add(1) & 4) << 1);
            inverse.wrapping_neg().wrapping_mul(g) & mask
        };
        g = g.wrapping_add(f.wrapping_mul(multiple));
        q = q.wrapping_add(u.wrapping_mul(multiple));
        r = r.wrapping_add(v.wrapping_mul(multiple));
    }
    Transition { u: u as i64, v: v as i64, q: q as i64, r: r as i64 }
}

/// a · b. The factors are below 2^62 in magnitude, as the paper shows for matrices and limbs, so the sums of
/// three such products and a carry fit as well; `wrapping` only avoids overflow checks in the inner loops.
fn wide(a: i64, b: i64) -> i128 {
    i128::from(a).wrapping_mul(i128::from(b))
}

/// carry + a · b + c · d.
fn add2(carry: i128, (a, b): (i64, i64), (c, d): (i64, i64)) -> i128 {
    carry.wrapping_add(wide(a, b)).wrapping_add(wide(c, d))
}

/// (f, g) := matrix · (f, g) / 2^62.
fn update_fg(f: &mut [i64], g: &mut [i64], t: &Transition) {
    let mut carry_f = wide(t.u, f[0]) + wide(t.v, g[0]);
    let mut carry_g = wide(t.q, f[0]) + wide(t.r, g[0]);
    carry_f >>= LIMB_BITS;
    carry_g >>= LIMB_BITS;
    let len = f.len();
    let g = &mut g[..len];
    for i in 1..len {
        carry_f = add2(carry_f, (t.u, f[i]), (t.v, g[i]));
        carry_g = add2(carry_g, (t.q, f[i]), (t.r, g[i]));
        f[i - 1] = (carry_f as u64 & LIMB_MASK) as i64;
        g[i - 1] = (carry_g as u64 & LIMB_MASK) as i64;
        carry_f >>= LIMB_BITS;
        carry_g >>= LIMB_BITS;
    }
    f[len - 1] = carry_f as i64;
    g[len - 1] = carry_g as i64;
}

/// Drops top limbs that contain only the sign of both numbers.
fn shrink(f: &mut [i64], g: &mut [i64], len: &mut usize) {
    while *len > 1 {
        let (top_f, top_g) = (f[*len - 1], g[*len - 1]);
        if !(top_f == 0 || top_f == -1) || !(top_g == 0 || top_g == -1) {
            return;
        }
        f[*len - 2] |= top_f << LIMB_BITS;
        g[*len - 2] |= top_g << LIMB_BITS;
        *len -= 1;
    }
}

impl OddModulus {
    /// Prepares an odd number, big endian.
    pub(crate) fn new(modulus: &[u8]) -> Self {
        assert!(modulus.last().is_some_and(|last| last & 1 == 1), "modulus must be odd");
        // Two spare bits: intermediate values are between −2 and 1 times the modulus.
        let len = (modulus.len() * 8 + 2).div_ceil(LIMB_BITS as usize);
        let limbs = to_limbs(modulus, len);
        // Newton's iteration; an odd number is its own inverse modulo 8, and each round doubles the bits.
        let low = limbs[0] as u64;
        let mut inverse = low;
        for _ in 0..5 {
            inverse = inverse.wrapping_mul(2u64.wrapping_sub(low.wrapping_mul(inverse)));
        }
        Self { limbs, inverse62: inverse & LIMB_MASK, bytes: modulus.len() }
    }

    /// Returns whether `value` (big endian, below the modulus) has no common factor with the modulus.
    pub(crate) fn is_coprime(&self, value: &[u8]) -> bool {
        let mut f = self.limbs.clone();
        let mut g = to_limbs(value, f.len());
        let mut len = f.len();
        let mut eta = -1;
        loop {
            shrink(&mut f, &mut g, &mut len);
            if g[..len].iter().all(|&limb| limb == 0) {
                return len == 1 && (f[0] == 1 || f[0] == -1);
            }
            let t = divsteps(&mut eta, f[0], g[0]);
            update_fg(&mut f[..len], &mut g[..len], &t);
        }
    }

    /// The inverse of `value` (big endian, below the modulus) modulo the modulus, if there is one; big
    /// endian, in as many bytes as the modulus has.
    pub(crate) fn invert(&self, value: &[u8]) -> Option<Vec<u8>> {
        let size = self.limbs.len();
        let mut f = self.limbs.clone();
        let mut g = to_limbs(value, size);
        let mut d = vec![0i64; size];
        let mut e = vec![0i64; size];
        e[0] = 1;
        let mut len = size;
        let mut eta = -1;
        // Invariant: f = d · value and g = e · value modulo the modulus.
        loop {
            shrink(&mut f, &mut g, &mut len);
            if g[..len].iter().all(|&limb| limb == 0) {
                break;
            }
            let t = divsteps(&mut eta, f[0], g[0]);
            self.update_de(&mut d, &mut e, &t);
            update_fg(&mut f[..len], &mut g[..len], &t);
        }
        if len != 1 || !(f[0] == 1 || f[0] == -1) {
            return None;
        }
        self.normalize(&mut d, f[0] < 0);
        Some(to_bytes(&d, self.bytes))
    }

    /// (d, e) := matrix · (d, e) / 2^62 modulo the modulus.
    fn update_de(&self, d: &mut [i64], e: &mut [i64], t: &Transition) {
        let n = self.limbs.as_slice();
        let len = n.len();
        let (d, e) = (&mut d[..len], &mut e[..len]);
        let sign_d = d[len - 1] >> 63;
        let sign_e = e[len - 1] >> 63;
        // Multiples of the modulus that make the results divisible by 2^62 and keep them in range.
        let mut multiple_d = (t.u & sign_d) + (t.v & sign_e);
        let mut multiple_e = (t.q & sign_d) + (t.r & sign_e);
        let mut carry_d = wide(t.u, d[0]) + wide(t.v, e[0]);
        let mut carry_e = wide(t.q, d[0]) + wide(t.r, e[0]);
        let correction = |carry: i128, multiple: i64| {
            (self.inverse62.wrapping_mul(carry as u64).wrapping_add(multiple as u64) & LIMB_MASK) as i64
        };
        multiple_d -= correction(carry_d, multiple_d);
        multiple_e -= correction(carry_e, multiple_e);
        carry_d += wide(n[0], multiple_d);
        carry_e += wide(n[0], multiple_e);
        carry_d >>= LIMB_BITS;
        carry_e >>= LIMB_BITS;
        for i in 1..len {
            carry_d = add2(carry_d, (t.u, d[i]), (t.v, e[i])).wrapping_add(wide(n[i], multiple_d));
            carry_e = add2(carry_e, (t.q, d[i]), (t.r, e[i])).wrapping_add(wide(n[i], multiple_e));
            d[i - 1] = (carry_d as u64 & LIMB_MASK) as i64;
            e[i - 1] = (carry_e as u64 & LIMB_MASK) as i64;
            carry_d >>= LIMB_BITS;
            carry_e >>= LIMB_BITS;
        }
        d[len - 1] = carry_d as i64;
        e[len - 1] = carry_e as i64;
    }

    /// Brings `d`, which is between −2 and 1 times the modulus, into 0..modulus; negates it first if `negate`
    /// is set.
    fn normalize(&self, d: &mut [i64], negate: bool) {
        let add_modulus_if_negative = |d: &mut [i64], negate: bool| {
            let add = d[d.len() - 1] < 0;
            let mut carry = 0i64;
            let last = d.len() - 1;
            for (i, limb) in d.iter_mut().enumerate() {
                // At most 2^62 + 2^62 + 1 in magnitude.
                let mut value = *limb + if add { self.limbs[i] } else { 0 };
                if negate {
                    value = -value;
                }
                value += carry;
                if i == last {
                    *limb = value;
                } else {
                    *limb = (value as u64 & LIMB_MASK) as i64;
                    carry = value >> LIMB_BITS;
                }
            }
        };
        add_modulus_if_negative(d, negate);
        add_modulus_if_negative(d, false);
    }
}

/// Big endian bytes into `len` limbs.
fn to_limbs(bytes: &[u8], len: usize) -> Vec<i64> {
    let mut limbs = vec![0; len];
    let mut buffer = 0u128;
    let mut bits = 0;
    let mut next = 0;
    for &byte in bytes.iter().rev() {
        buffer |= u128::from(byte) << bits;
        bits += 8;
        if bits >= LIMB_BITS {
            limbs[next] = (buffer as u64 & LIMB_MASK) as i64;
            next += 1;
            buffer >>= LIMB_BITS;
            bits -= LIMB_BITS;
        }
    }
    if buffer != 0 {
        limbs[next] = buffer as i64;
    }
    limbs
}

/// Limbs of a number that is not negative into `len` big endian bytes.
fn to_bytes(limbs: &[i64], len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut buffer = 0u128;
    let mut bits = 0;
    let mut limbs = limbs.iter();
    for byte in bytes.iter_mut().rev() {
        if bits < 8
            && let Some(&limb) = limbs.next()
        {
            buffer |= (limb as u128) << bits;
            bits += LIMB_BITS;
        }
        *byte = buffer as u8;
        buffer >>= 8;
        bits = bits.saturating_sub(8);
    }
    bytes
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use num_bigint::BigUint;
    use proptest::prelude::*;

    fn gcd(mut a: BigUint, mut b: BigUint) -> BigUint {
        while b != BigUint::ZERO {
            (a, b) = (b.clone(), a % b);
        }
        a
    }

    fn check(modulus: &[u8], value: &BigUint) {
        let n = BigUint::from_bytes_be(modulus);
        let value = value % &n;
        let odd = OddModulus::new(modulus);
        let bytes = value.to_bytes_be();
        let coprime = gcd(n.clone(), value.clone()) == BigUint::from(1u8);
        assert_eq!(odd.is_coprime(&bytes), coprime);
        let inverse = odd.invert(&bytes);
        assert_eq!(inverse.is_some(), coprime);
        if let Some(inverse) = inverse {
            assert_eq!(inverse.len(), modulus.len());
            assert_eq!(BigUint::from_bytes_be(&inverse) * value % n, BigUint::from(1u8));
        }
    }

    #[test]
    fn extremes() {
        for size in [1, 7, 8, 31, 32, 128, 256] {
            let modulus = vec![0xff; size];
            for value in [0u32, 1, 2, 3, 5, 254] {
                check(&modulus, &BigUint::from(value));
            }
            let n = BigUint::from_bytes_be(&modulus);
            check(&modulus, &(&n - 1u8));
            check(&modulus, &(&n >> 1));
        }
    }

    proptest! {
        #[test]
        fn agrees_with_euclid(
            mut modulus in proptest::collection::vec(any::<u8>(), 2..300),
            value in proptest::collection::vec(any::<u8>(), 0..300),
            factor in 1u32..50,
        ) {
            *modulus.last_mut().unwrap() |= 1;
            modulus[0] |= 1;
            let value = BigUint::from_bytes_be(&value);
            check(&modulus, &value);
            // This makes values with a common factor more frequent.
            check(&(BigUint::from_bytes_be(&modulus) * (2 * factor + 1)).to_bytes_be(), &(value * (2 * factor + 1)));
        }
    }
}
