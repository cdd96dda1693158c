//! Reserve keys in the texts of transfers.
//!
//! People type or paste a key, and forms cut it: into groups (`ABCD EFGH …`), at the end of a line, with hyphens. A wrong
//! key would send the money to a reserve that nobody owns, so a text with several candidates has none.

use std::collections::BTreeSet;

use batzen_crypto::{EddsaPublicKey, base32};

/// The length of a key in base32.
const KEY_CHARS: usize = 52;
/// The word before a key that proves who somebody is and names no reserve.
const KYC_MARK: &str = "KYC";

/// The only reserve key in a text, if there is exactly one. A key in one piece takes precedence over pieces.
pub(crate) fn reserve_pub(text: &str) -> Option<EddsaPublicKey> {
    let words: Vec<&str> =
        text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let marked = |at: usize| at > 0 && words[at - 1].eq_ignore_ascii_case(KYC_MARK);
    let whole: BTreeSet<EddsaPublicKey> = (0..words.len())
        .filter(|at| words[*at].len() == KEY_CHARS && !marked(*at))
        .filter_map(|at| words[at].parse().ok())
        .collect();
    let keys = match whole.is_empty() {
        true => (0..words.len()).filter(|at| !marked(*at)).filter_map(|at| joined(&words[at..])).collect(),
        false => whole,
    };
    let mut keys = keys.into_iter();
    keys.next().filter(|_| keys.next().is_none())
}

/// The key whose pieces the first words are.
fn joined(words: &[&str]) -> Option<EddsaPublicKey> {
    if words.first().is_some_and(|word| word.eq_ignore_ascii_case(KYC_MARK)) {
        return None;
    }
    let mut text = String::with_capacity(KEY_CHARS);
    for word in words {
        text.push_str(word);
        if text.len() >= KEY_CHARS {
            break;
        }
    }
    if text.len() != KEY_CHARS {
        return None;
    }
    let key: EddsaPublicKey = text.parse().ok()?;
    // The last character of a key has four bits that are zero: most accidental joints of words fail here.
    let plain = |c: char| match c.to_ascii_uppercase() {
        'O' => '0',
        'I' | 'L' => '1',
        'U' => 'V',
        c => c,
    };
    text.chars().map(plain).eq(base32::encode(key.as_bytes()).chars()).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "9VP76NT49PVYQ8BK0QBE5W9TGRF035FZPJ9P6S441ZC5H7F7BZY0";
    const OTHER: &str = "SZWWYT9HVB6TW9JAS4FE8P8DFGYGE5P28ES45PBR26B8DC28S41G";

    fn pieces(size: usize, between: &str) -> String {
        let chars: Vec<char> = KEY.chars().collect();
        chars.chunks(size).map(|piece| piece.iter().collect::<String>()).collect::<Vec<_>>().join(between)
    }

    #[test]
    fn keys_are_found_however_they_are_cut() {
        let mut texts = vec![
            KEY.to_owned(),
            KEY.to_lowercase(),
            format!("for {KEY}, thanks"),
            format!("reserve:{KEY}"),
            format!("Taler-{KEY}."),
            format!("{KEY} {KEY}"),
            format!("{KEY} http://exchange.test/"),
            format!("for the reserve {}", pieces(4, " ")),
            format!("{} rent of May", pieces(8, "-")),
            KEY.replace('0', "O").replace('1', "l"),
        ];
        for size in [1, 3, 4, 5, 10, 26, 35, 51] {
            texts.extend([" ", "-", "\n", "  ", " - ", "/"].map(|between| pieces(size, between)));
        }
        for text in texts {
            assert_eq!(reserve_pub(&text), KEY.parse().ok(), "{text}");
        }
    }

    #[test]
    fn no_key_is_guessed() {
        for text in [
            String::new(),
            "rent of May".to_owned(),
            format!("KYC:{KEY}"),
            format!("kyc {}", pieces(4, " ")),
            format!("{KEY} {OTHER}"),
            KEY[..51].to_owned(),
            format!("{KEY}0"),
            format!("X{KEY}"),
            pieces(4, " ").replacen("9VP7 ", "", 1),
            format!("{}1", &KEY[..51]).replacen('T', "T ", 1),
            "\u{e4}".repeat(52),
        ] {
            assert_eq!(reserve_pub(&text), None, "{text}");
        }
    }
}
