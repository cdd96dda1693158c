//! The signing keys of exchanges. The protocol publishes a revocation only by leaving the key out of `/keys`, so an older list
//! would bring it back: from a replica that is behind, or from somebody in between who has stolen the key.

use std::collections::BTreeSet;

use batzen_crypto::EddsaPublicKey;
use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::{Duration, Timestamp};
use batzen_tables::merchant::{ExchangeSignkeyKey, ExchangeSignkeyRow, ExchangeSignkeys};

use super::{Decided, MerchantRules, Refusal};

/// Time after which every replica of an exchange lists a new key, and every cache, since lists may be kept for an hour.
const LAG: Duration = Duration::from_secs(7_200);
/// The last part of a key's time, in which a list may leave it out already: clocks differ.
const SKEW: Duration = Duration::from_secs(300);
/// The maximum number of keys of an exchange that are remembered. Further ones are refused.
const KNOWN_MAX: usize = 4_096;

/// A signing key of an exchange's list, which its master key has signed.
#[derive(Clone, Debug)]
pub(crate) struct ListedSignkey {
    pub(crate) exchange_pub: EddsaPublicKey,
    pub(crate) stamp_start: Timestamp,
    pub(crate) stamp_expire: Timestamp,
    pub(crate) stamp_end: Timestamp,
}

/// Books the signing keys of an exchange's list. A key that is left out before it expires is withdrawn, for good. Idempotent.
#[derive(Clone, Debug)]
pub(crate) struct NoteSignkeys {
    pub(crate) master_pub: EddsaPublicKey,
    pub(crate) listed: Vec<ListedSignkey>,
}

impl Command<MerchantRules> for NoteSignkeys {
    /// The keys of the list that are refused: withdrawn, or over.
    type Answer = BTreeSet<EddsaPublicKey>;

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan.group::<ExchangeSignkeys>(ExchangeSignkeys::BY_EXCHANGE, &self.master_pub);
        for listed in &self.listed {
            plan.row::<ExchangeSignkeys>(self.key(listed));
        }
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, now: Timestamp) -> Decided<Self::Answer> {
        let known = rows.group::<ExchangeSignkeys>(ExchangeSignkeys::BY_EXCHANGE, &self.master_pub);
        let known: Vec<_> = known.into_iter().map(|(key, row)| (key.clone(), row.clone())).collect();
        let listed: BTreeSet<_> = self.listed.iter().map(|listed| listed.exchange_pub).collect();
        let gone: BTreeSet<_> = known
            .iter()
            .filter(|(_, row)| row.withdrawn.is_some())
            .map(|(key, _)| key.exchange_pub)
            .collect();
        let counts_no_more =
            |listed: &&ListedSignkey| listed.stamp_end <= now || gone.contains(&listed.exchange_pub);
        let mut refused: BTreeSet<_> =
            self.listed.iter().filter(counts_no_more).map(|listed| listed.exchange_pub).collect();
        // A list with a refused key is an old one, and says nothing about newer keys. An exchange always lists a key that signs
        // now, so a list without one proves nothing.
        let signs_now = |listed: &ListedSignkey| listed.stamp_start <= now && now < listed.stamp_expire;
        let is_current = refused.is_empty() && self.listed.iter().any(signs_now);
        let mut room = KNOWN_MAX.saturating_sub(known.len());
        for (key, row) in known {
            if row.stamp_end <= now {
                rows.delete::<ExchangeSignkeys>(&key);
                continue;
            }
            let is_missing =
                !listed.contains(&key.exchange_pub) && now.saturating_add(SKEW) < row.stamp_expire;
            if !is_missing || row.withdrawn.is_some() || !is_current {
                continue;
            }
            if now < row.first_seen.saturating_add(LAG) {
                rows.delete::<ExchangeSignkeys>(&key);
            } else {
                rows.update::<ExchangeSignkeys>(&key, ExchangeSignkeyRow { withdrawn: Some(now), ..row });
            }
        }
        for listed in self.listed.iter().filter(|listed| now < listed.stamp_end) {
            let ListedSignkey { stamp_expire, stamp_end, .. } = *listed;
            let row = ExchangeSignkeyRow { first_seen: now, stamp_expire, stamp_end, withdrawn: None };
            if rows.get::<ExchangeSignkeys>(&self.key(listed)).is_some() {
                continue;
            }
            if room == 0 {
                refused.insert(listed.exchange_pub);
                continue;
            }
            room -= 1;
            rows.insert::<ExchangeSignkeys>(&self.key(listed), row);
        }
        Ok(refused)
    }
}

/// Forgets the signing keys of an exchange, also the withdrawn ones, so that its next list counts as the first.
#[derive(Clone, Debug)]
pub(crate) struct ForgetSignkeys {
    pub(crate) master_pub: EddsaPublicKey,
}

impl Command<MerchantRules> for ForgetSignkeys {
    /// Their number.
    type Answer = usize;

    fn plan(&self, _: &MerchantRules, plan: &mut Plan) {
        plan.group::<ExchangeSignkeys>(ExchangeSignkeys::BY_EXCHANGE, &self.master_pub);
    }

    fn execute(&self, _: &MerchantRules, rows: &mut WorkingSet, _: Timestamp) -> Result<usize, Refusal> {
        let known = rows.group::<ExchangeSignkeys>(ExchangeSignkeys::BY_EXCHANGE, &self.master_pub);
        let keys: Vec<_> = known.into_iter().map(|(key, _)| key.clone()).collect();
        for key in &keys {
            rows.delete::<ExchangeSignkeys>(key);
        }
        Ok(keys.len())
    }
}

impl NoteSignkeys {
    fn key(&self, listed: &ListedSignkey) -> ExchangeSignkeyKey {
        ExchangeSignkeyKey { master_pub: self.master_pub, exchange_pub: listed.exchange_pub }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use batzen_engine::Batcher;
    use batzen_store::Store;
    use batzen_store::memory::MemoryBackend;

    use super::*;
    use crate::rules::TypedCommand as _;

    const KEYS: [u8; 3] = [1, 2, 3];

    /// The keys of a list that count, at a time in minutes after the first.
    fn accepted(batcher: &Batcher<MerchantRules>, minute: u64, listed: &[u8]) -> Vec<u8> {
        let time = |minutes: u64| Timestamp::from_secs(1_000_000 + 60 * minutes);
        let key = |n: u8| EddsaPublicKey::from_bytes([n; 32]);
        // The third expires early.
        let signkey = |&n: &u8| ListedSignkey {
            exchange_pub: key(n),
            stamp_start: time(0),
            stamp_expire: time(if n == 3 { 140 } else { 10_000 }),
            stamp_end: time(20_000),
        };
        let note = NoteSignkeys { master_pub: key(99), listed: listed.iter().map(signkey).collect() };
        let mut verdicts = batcher.run(&[note.into()], &move || time(minute)).unwrap();
        let refused = NoteSignkeys::answer(verdicts.remove(0).unwrap());
        listed.iter().copied().filter(|n| !refused.contains(&key(*n))).collect()
    }

    #[test]
    fn a_key_that_was_left_out_does_not_come_back() {
        let store = Store::new(MemoryBackend::new());
        let batcher = Batcher::new(Arc::new(MerchantRules::default()), store);
        let at = |minute, listed: &[u8]| accepted(&batcher, minute, listed);
        assert_eq!(at(0, &KEYS), KEYS);
        // A new key is not yet listed everywhere.
        assert_eq!(at(5, &[1]), [1]);
        assert_eq!(at(6, &KEYS), KEYS);
        // The second is revoked; the third expires.
        assert_eq!(at(130, &[1, 3]), [1, 3]);
        assert_eq!(at(141, &[1]), [1]);
        for minute in [142, 143] {
            assert_eq!(at(minute, &KEYS), [1, 3], "an older list");
            assert_eq!(at(minute, &[2]), [0; 0], "an old list says nothing about others");
        }
        assert_eq!(at(150, &[1]), [1]);
        // An empty list proves nothing, nor does one whose keys have all expired.
        assert_eq!(at(300, &[]), [0; 0]);
        assert_eq!(at(301, &[3]), [3]);
        assert_eq!(at(302, &[1]), [1]);
        // Until the shop's operator forgets them.
        let forget = ForgetSignkeys { master_pub: EddsaPublicKey::from_bytes([99; 32]) };
        let mut verdicts = batcher.run(&[forget.into()], &|| Timestamp::from_secs(1_020_000)).unwrap();
        assert_eq!(ForgetSignkeys::answer(verdicts.remove(0).unwrap()), 3);
        assert_eq!(at(340, &[1, 2]), [1, 2]);
        // The rows are forgotten, and signatures count no more.
        assert_eq!(at(30_000, &KEYS), [0; 0]);
    }
}
