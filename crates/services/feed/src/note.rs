//! The note that an exchange keeps with an auditor's hold: the head of the chain there, and the auditor's signature.

use batzen_crypto::{EddsaSignature, ShortHash};
use batzen_protocol::Timestamp;

/// The note of a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    /// The head before the held frame.
    pub(crate) head: ShortHash,
    /// When the auditor signed it, and its signature. Without them it has not acknowledged anything yet.
    pub(crate) acknowledged: Option<(Timestamp, EddsaSignature)>,
    /// The tables of the chain.
    pub(crate) tables: Vec<u16>,
}

const VERSION: u8 = 1;

impl Note {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(self.head.as_bytes());
        out.push(self.acknowledged.is_some().into());
        if let Some((time, signature)) = &self.acknowledged {
            out.extend_from_slice(&time.as_micros().to_be_bytes());
            out.extend_from_slice(signature.as_bytes());
        }
        self.tables.iter().for_each(|table| out.extend_from_slice(&table.to_be_bytes()));
        out
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&VERSION, rest) = bytes.split_first()? else { return None };
        let (head, rest) = rest.split_first_chunk()?;
        let (has_ack, mut rest) = rest.split_first()?;
        let mut acknowledged = None;
        if *has_ack == 1 {
            let (time, after) = rest.split_first_chunk()?;
            let (signature, after) = after.split_first_chunk()?;
            let time = Timestamp::from_micros(u64::from_be_bytes(*time));
            acknowledged = Some((time, EddsaSignature::from_bytes(*signature)));
            rest = after;
        }
        let (tables, rest) = rest.as_chunks::<2>();
        let tables = tables.iter().map(|table| u16::from_be_bytes(*table)).collect();
        rest.is_empty().then(|| Self { head: ShortHash::from_bytes(*head), acknowledged, tables })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_back() {
        for acknowledged in [None, Some((Timestamp::from_secs(3), EddsaSignature::from_bytes([4; 64])))] {
            let note = Note { head: ShortHash::from_bytes([5; 32]), acknowledged, tables: vec![1, 2, 300] };
            let bytes = note.to_bytes();
            assert!(bytes.len() < batzen_store::HOLD_NOTE_BYTES_MAX / 2);
            assert_eq!(Note::from_bytes(&bytes), Some(note));
            assert_eq!(Note::from_bytes(&bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(Note::from_bytes(&[]), None);
        assert_eq!(Note::from_bytes(&[9; 200]), None);
    }
}
