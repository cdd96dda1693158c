//! Formats texts of the interface into reusable buffers.

/// A transfer's id: a random UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u128);

impl TransferId {
    /// A version 4 UUID of these random bits.
    pub(crate) const fn from_random(bits: u128) -> Self {
        let version = (bits & !(0xf << 76)) | (4 << 76);
        Self((version & !(3 << 62)) | (2 << 62))
    }

    /// Parses 36 characters in lower case.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        if text.len() != 36 {
            return None;
        }
        let mut bits = 0;
        for (index, letter) in text.iter().enumerate() {
            if matches!(index, 8 | 13 | 18 | 23) {
                if *letter != b'-' {
                    return None;
                }
                continue;
            }
            let digit = match letter {
                b'0'..=b'9' => letter - b'0',
                b'a'..=b'f' => letter - b'a' + 10,
                _ => return None,
            };
            bits = bits << 4 | u128::from(digit);
        }
        Some(Self(bits))
    }

    pub(crate) fn write(self, out: &mut Vec<u8>) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        for (index, byte) in self.0.to_be_bytes().into_iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                out.push(b'-');
            }
            out.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
    }
}

impl std::fmt::Display for TransferId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = Vec::with_capacity(36);
        self.write(&mut out);
        f.write_str(std::str::from_utf8(&out).map_err(|_| std::fmt::Error)?)
    }
}

/// Appends a number.
pub(crate) fn number(out: &mut Vec<u8>, number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut left = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends an amount without superfluous zeros.
pub(crate) fn amount(out: &mut Vec<u8>, cents: u64) {
    number(out, cents / 100);
    let fraction = cents % 100;
    if fraction > 0 {
        out.push(b'.');
        out.push(b'0' + (fraction / 10) as u8);
        if !fraction.is_multiple_of(10) {
            out.push(b'0' + (fraction % 10) as u8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn ids_are_random_uuids() {
        let id = TransferId::from_random(u128::MAX);
        assert_eq!(id.to_string(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(TransferId::parse(id.to_string().as_bytes()), Some(id));
        let text = "1a0a1f3e-7c1d-4c9b-8a55-6a3b1e8f2b10";
        assert_eq!(TransferId::parse(text.as_bytes()).unwrap().to_string(), text);
        for wrong in ["", "1A0a1f3e-7c1d-4c9b-8a55-6a3b1e8f2b10", "1a0a1f3e07c1d-4c9b-8a55-6a3b1e8f2b10"] {
            assert_eq!(TransferId::parse(wrong.as_bytes()), None);
        }
    }

    #[test]
    fn amounts_have_no_superfluous_zeros() {
        for (cents, expected) in [(1, "0.01"), (10, "0.1"), (100, "1"), (12_345, "123.45"), (0, "0")] {
            assert_eq!(written(|out| amount(out, cents)), expected);
        }
    }
}
