//! Almost valid texts: base32, amounts, times, names.

use std::collections::{BTreeMap, BTreeSet};

use crate::mutate::dice::Dice;

const BASE32: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

const AMOUNTS: [&str; 19] = [
    "0",
    "0.00000001",
    "0.000000001",
    "1",
    "1.",
    ".5",
    "01",
    "1e3",
    "-1",
    "+1",
    " 1",
    "0.01",
    "4503599627370495.99999999",
    "4503599627370496",
    "4503599627370497",
    "9007199254740993",
    "18446744073709551615",
    "18446744073709551616",
    "1.00000000000000000000000000000000000001",
];

/// Texts that are valid nowhere.
const ODD: [&str; 22] = [
    "",
    " ",
    "0",
    "-1",
    "null",
    "\0",
    "\u{202e}abc",
    "é",
    "e\u{301}",
    "😀",
    "\u{feff}",
    "\r\nX-Injected: 1",
    "../../etc/passwd",
    "%00",
    "'; DROP TABLE coins; --",
    "<script>alert(1)</script>",
    "payto://",
    "payto://x-taler-bank/localhost/zoe?receiver-name=zoe",
    "payto://iban/DE75512108001245126199?receiver-name=x",
    "http://127.0.0.1:1/",
    "2099-01-01T00:00:00.000Z",
    "9999-12-31T23:59:60.999Z",
];

/// Texts from valid requests, to replace others of the same length.
#[derive(Default)]
pub(super) struct Pool {
    all: Vec<String>,
    by_length: BTreeMap<usize, Vec<usize>>,
    seen: BTreeSet<String>,
}

impl Pool {
    /// The most texts kept of one length.
    const KEPT: usize = 400;

    pub(super) fn add(&mut self, text: &str) {
        let same = self.by_length.entry(text.len()).or_default();
        if same.len() < Self::KEPT && self.seen.insert(text.to_owned()) {
            same.push(self.all.len());
            self.all.push(text.to_owned());
        }
    }

    pub(super) fn any(&self, dice: &mut Dice) -> &str {
        if self.all.is_empty() { "x" } else { &self.all[dice.below(self.all.len())] }
    }

    /// A recorded text of this length.
    pub(super) fn of_length(&self, dice: &mut Dice, length: usize) -> Option<&str> {
        let same = self.by_length.get(&length)?;
        Some(&self.all[same[dice.below(same.len())]])
    }

    /// A text similar to this one.
    pub(super) fn mutate(&self, dice: &mut Dice, text: &str) -> String {
        if let Some((currency, number)) = text.split_once(':')
            && number.starts_with(|c: char| c.is_ascii_digit())
            && dice.chance(70)
        {
            return match dice.below(8) {
                0 => format!("EUR:{number}"),
                1 => format!("{currency}{number}"),
                2 => format!("{}:{number}", currency.repeat(12)),
                3 => format!("-{text}"),
                _ => format!("{currency}:{}", dice.pick(&AMOUNTS)),
            };
        }
        match dice.below(16) {
            0..=3 => flip(dice, text),
            4 => text.chars().take(dice.below(text.len().max(1))).collect(),
            5 => format!("{text}{}", char::from(BASE32[dice.below(32)])),
            6 => text.to_lowercase(),
            7 => text.replace('0', "O").replace('1', "I"),
            8..=10 => self.of_length(dice, text.len()).unwrap_or("0").to_owned(),
            11 => format!("{text}{}", dice.pick(&ODD)),
            12 => "A".repeat([53, 64, 104, 600, 3000][dice.below(5)]),
            13 if dice.chance(3) => "x".repeat([9000, 70_000, 1 << 20][dice.below(3)]),
            14 => "9".repeat(1 + dice.below(60)),
            _ => dice.pick(&ODD).to_owned(),
        }
    }
}

/// Replaces the character at one place.
fn flip(dice: &mut Dice, text: &str) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    if characters.is_empty() {
        return "0".to_owned();
    }
    let place = dice.below(characters.len());
    characters[place] = char::from(BASE32[dice.below(32)]);
    characters.into_iter().collect()
}
