//! Statements of what an exchange owes, signed, and the chain that they form.

use std::collections::BTreeMap;

pub use crate::api::exchange::SignKey as SigningKey;
use crate::signatures::{AuditorConfirmLiabilities, ExchangeLiabilities, SignedMessage};
use crate::{Currency, MoneySum, Timestamp, limits};
use batzen_crypto::hash::{Digest, Sha512, finish};
use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode};
use serde::{Deserialize, Serialize};

use crate::liabilities::leaf::Kind;
use crate::liabilities::tree::{BITS_MAX, Node, Tree};
use crate::liabilities::{BUCKET_LEAVES_MIN, CLOCK_SKEW};

/// The version of statements.
pub const VERSION: u32 = 1;
/// The most denominations in one statement.
pub(crate) const DENOMINATIONS_MAX: usize = 1 << 14;

/// Faults of a statement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It has a version that this program does not know.
    #[error("version {0} is unknown")]
    Version(u32),
    /// The exchange did not sign it, or with a key that the master key has not signed for that time.
    #[error("it is not signed by the exchange")]
    Signature,
    /// It belongs to another exchange, or has another currency.
    #[error("it belongs to another exchange")]
    Exchange,
    /// It does not continue the statement before it.
    #[error("it does not continue the statement of epoch {0}")]
    Chain(u64),
    /// Its times are impossible.
    #[error("its times are impossible")]
    Times,
    /// Denominations are not in order, or one is there twice.
    #[error("its denominations are not in order")]
    Order,
    /// A denomination is gone before its time, or has changed.
    #[error("denomination {0} is gone or has changed")]
    Denomination(HashCode),
    /// The totals of a denomination are not those before it and the epoch's.
    #[error("the totals of denomination {0} do not add up")]
    Totals(HashCode),
    /// The sum of issued coins is not their number times their value.
    #[error("the issued coins of denomination {0} do not add up")]
    Value(HashCode),
    /// More was redeemed than issued.
    #[error("denomination {0} has redeemed more than it issued")]
    Overdrawn(HashCode),
    /// The auditor's signature is not valid.
    #[error("it is not signed by the auditor")]
    Auditor,
}

/// One tree of an epoch, and the totals of all epochs up to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Number of bits of a leaf's hash that number its bucket.
    pub bits: u8,
    /// The tree's root.
    pub root: Node,
    /// Number of leaves that there are in all epochs.
    pub total_count: u64,
    /// Their sum.
    #[serde(with = "crate::liabilities::sum")]
    pub total: MoneySum,
}

impl Part {
    /// A part without leaves.
    #[must_use]
    pub fn empty() -> Self {
        Self { bits: 0, root: Node::empty(), total_count: 0, total: MoneySum::ZERO }
    }

    /// The part of an epoch's tree after what came before. `None` if sums overflow.
    #[must_use]
    pub fn after(before: Option<&Self>, tree: &Tree) -> Option<Self> {
        Self::of(before, tree.bits(), tree.root())
    }

    fn of(before: Option<&Self>, bits: u8, root: Node) -> Option<Self> {
        let (count, total) = before.map_or((0, MoneySum::ZERO), |before| (before.total_count, before.total));
        Some(Self {
            bits,
            root,
            total_count: count.checked_add(root.count)?,
            total: total.checked_add(root.sum).ok()?,
        })
    }

    /// Returns whether its buckets are so large that fetching one does not tell whose leaf is looked for.
    #[must_use]
    pub fn hides_leaves(&self) -> bool {
        self.bits == 0 || self.root.count >> self.bits.min(63) >= BUCKET_LEAVES_MIN
    }

    /// Number of leaves of the same tree that hide one when its bucket is fetched.
    #[must_use]
    pub fn hidden_among(&self) -> u64 {
        self.root.count >> self.bits.min(63)
    }
}

/// A denomination's entry in a statement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Hash of the denomination key.
    pub h_denom_pub: HashCode,
    /// The value of its coins.
    #[serde(with = "crate::liabilities::sum")]
    pub value: MoneySum,
    /// Its legal end. Afterwards it is no longer listed.
    pub until: Timestamp,
    /// Blind signatures.
    pub issued: Part,
    /// Payments of coins.
    pub redeemed: Part,
    /// Money returned to coins.
    pub returned: Part,
}

impl Entry {
    /// One of its parts.
    #[must_use]
    pub fn part(&self, kind: Kind) -> &Part {
        match kind {
            Kind::Issued => &self.issued,
            Kind::Redeemed => &self.redeemed,
            Kind::Returned => &self.returned,
        }
    }

    /// The debt for its coins. `None` if more was redeemed than issued.
    #[must_use]
    pub fn outstanding(&self) -> Option<MoneySum> {
        let there = self.issued.total.checked_add(self.returned.total).ok()?;
        there.checked_sub(self.redeemed.total).ok()
    }
}

/// The body of a statement, before it is signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Body {
    /// The version of its form.
    pub version: u32,
    /// The exchange's master key.
    pub master_pub: EddsaPublicKey,
    /// The currency of all sums.
    pub currency: Currency,
    /// Its number, counted from 1.
    pub epoch: u64,
    /// The end of the epoch before it; zero for the first.
    pub start: Timestamp,
    /// Every row of an earlier date is in this epoch or an earlier one.
    pub end: Timestamp,
    /// When the rows were read. Rows from `end` on may be in this epoch or in the next.
    pub taken: Timestamp,
    /// Hash of the statement before it; all zero for the first.
    pub previous: HashCode,
    /// The denominations, in ascending order of their hashes.
    #[serde(deserialize_with = "limits::array::<_, _, DENOMINATIONS_MAX>")]
    pub denominations: Vec<Entry>,
}

impl Body {
    /// The hash that is signed, and that the next statement names.
    #[must_use]
    pub fn hash(&self) -> HashCode {
        let mut hasher = Sha512::new();
        hasher.update(b"batzen-liabilities-statement\0");
        hasher.update(self.version.to_be_bytes());
        hasher.update(self.master_pub.as_bytes());
        hasher.update(self.currency.padded());
        hasher.update(self.epoch.to_be_bytes());
        for time in [self.start, self.end, self.taken] {
            hasher.update(time.to_nbo());
        }
        hasher.update(self.previous.as_bytes());
        hasher.update((self.denominations.len() as u64).to_be_bytes());
        for entry in &self.denominations {
            hasher.update(entry.h_denom_pub.as_bytes());
            hasher.update(entry.value.units().to_be_bytes());
            hasher.update(entry.until.to_nbo());
            for kind in Kind::ALL {
                let part = entry.part(kind);
                hasher.update([part.bits]);
                hasher.update(part.root.hash.as_bytes());
                hasher.update(part.root.count.to_be_bytes());
                hasher.update(part.root.sum.units().to_be_bytes());
                hasher.update(part.total_count.to_be_bytes());
                hasher.update(part.total.units().to_be_bytes());
            }
        }
        finish(hasher)
    }

    /// The message that the exchange signs.
    #[must_use]
    pub fn message(&self) -> ExchangeLiabilities {
        ExchangeLiabilities {
            epoch: self.epoch,
            end: self.end,
            previous: self.previous,
            h_statement: self.hash(),
        }
    }

    /// The entry of a denomination.
    #[must_use]
    pub fn entry(&self, h_denom_pub: &HashCode) -> Option<&Entry> {
        let found = self.denominations.binary_search_by_key(h_denom_pub, |entry| entry.h_denom_pub).ok()?;
        Some(&self.denominations[found])
    }

    /// The debt for all coins. `None` if more was redeemed than issued.
    #[must_use]
    pub fn outstanding(&self) -> Option<MoneySum> {
        let mut sum = MoneySum::ZERO;
        for entry in &self.denominations {
            sum = sum.checked_add(entry.outstanding()?).ok()?;
        }
        Some(sum)
    }

    /// Checks it against the statement before it (none: it is the first): that they form a chain, and that all totals add
    /// up.
    ///
    /// # Errors
    /// The first fault.
    pub fn check_after(&self, before: Option<&Self>) -> Result<(), Fault> {
        if self.version != VERSION {
            return Err(Fault::Version(self.version));
        }
        if self.end <= self.start || self.taken < self.end || self.taken.is_never() {
            return Err(Fault::Times);
        }
        if !self.denominations.is_sorted_by(|one, next| one.h_denom_pub < next.h_denom_pub) {
            return Err(Fault::Order);
        }
        let mut earlier: BTreeMap<&HashCode, &Entry> = BTreeMap::new();
        match before {
            None if self.epoch == 1 && self.previous.is_zero() && self.start == Timestamp::ZERO => {}
            None => return Err(Fault::Chain(self.epoch.saturating_sub(1))),
            Some(before) => {
                if self.master_pub != before.master_pub || self.currency != before.currency {
                    return Err(Fault::Exchange);
                }
                let continues = Some(self.epoch) == before.epoch.checked_add(1)
                    && self.previous == before.hash()
                    && self.start == before.end
                    && self.taken >= before.taken;
                if !continues {
                    return Err(Fault::Chain(before.epoch));
                }
                earlier = before.denominations.iter().map(|entry| (&entry.h_denom_pub, entry)).collect();
            }
        }
        for entry in &self.denominations {
            let name = entry.h_denom_pub;
            let before = earlier.remove(&name);
            if before.is_some_and(|before| before.value != entry.value || before.until != entry.until) {
                return Err(Fault::Denomination(name));
            }
            for kind in Kind::ALL {
                let part = entry.part(kind);
                let expected = Part::of(before.map(|before| before.part(kind)), part.bits, part.root);
                if expected != Some(*part) || part.bits > BITS_MAX {
                    return Err(Fault::Totals(name));
                }
            }
            let issued = entry.value.units().checked_mul(entry.issued.root.count.into());
            if issued != Some(entry.issued.root.sum.units()) {
                return Err(Fault::Value(name));
            }
            if entry.outstanding().is_none() {
                return Err(Fault::Overdrawn(name));
            }
        }
        // A denomination leaves only after its legal end.
        match earlier.values().find(|entry| entry.until > self.end) {
            Some(gone) => Err(Fault::Denomination(gone.h_denom_pub)),
            None => Ok(()),
        }
    }
}

impl SigningKey {
    /// Returns whether the master key has signed it.
    #[must_use]
    pub(crate) fn is_of(&self, master_pub: &EddsaPublicKey) -> bool {
        self.validity().verify(master_pub, &self.master_sig)
    }

    /// Returns whether it may have signed at this time.
    #[must_use]
    pub(crate) fn signs_at(&self, time: Timestamp) -> bool {
        self.stamp_start <= time.saturating_add(CLOCK_SKEW)
            && time <= self.stamp_expire.saturating_add(CLOCK_SKEW)
    }
}

/// A signed statement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    /// Its body.
    pub statement: Body,
    /// The exchange's signature.
    pub exchange_sig: EddsaSignature,
    /// The key that made it.
    pub signing_key: SigningKey,
}

impl Statement {
    /// Its signed head.
    #[must_use]
    pub fn head(&self) -> Head {
        let ExchangeLiabilities { epoch, end, previous, h_statement } = self.statement.message();
        let (exchange_sig, signing_key) = (self.exchange_sig, self.signing_key);
        Head { epoch, end, previous, h_statement, exchange_sig, signing_key }
    }

    /// Checks the signatures.
    ///
    /// # Errors
    /// [`Fault::Exchange`] or [`Fault::Signature`].
    pub fn check_signature(&self, master_pub: &EddsaPublicKey) -> Result<(), Fault> {
        let body = &self.statement;
        if body.master_pub != *master_pub {
            return Err(Fault::Exchange);
        }
        let is_right = self.signing_key.is_of(master_pub)
            && self.signing_key.signs_at(body.taken)
            && body.message().verify(&self.signing_key.key, &self.exchange_sig);
        if is_right { Ok(()) } else { Err(Fault::Signature) }
    }
}

/// The signed head of a statement: enough to continue the chain, and to prove that there is another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The epoch.
    pub epoch: u64,
    /// Its end.
    pub end: Timestamp,
    /// Hash of the statement before it.
    pub previous: HashCode,
    /// Hash of the statement.
    pub h_statement: HashCode,
    /// The exchange's signature.
    pub exchange_sig: EddsaSignature,
    /// The key that made it.
    pub signing_key: SigningKey,
}

impl Head {
    /// Checks the signatures.
    ///
    /// # Errors
    /// [`Fault::Signature`].
    pub fn check(&self, master_pub: &EddsaPublicKey) -> Result<(), Fault> {
        let message = ExchangeLiabilities {
            epoch: self.epoch,
            end: self.end,
            previous: self.previous,
            h_statement: self.h_statement,
        };
        let is_right =
            self.signing_key.is_of(master_pub) && message.verify(&self.signing_key.key, &self.exchange_sig);
        if is_right { Ok(()) } else { Err(Fault::Signature) }
    }
}

/// An auditor's confirmation of a statement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confirmation {
    /// The exchange's master key.
    pub master_pub: EddsaPublicKey,
    /// The epoch.
    pub epoch: u64,
    /// Hash of the statement.
    pub h_statement: HashCode,
    /// When it was checked.
    pub time: Timestamp,
    /// The auditor's key.
    pub auditor_pub: EddsaPublicKey,
    /// The auditor's signature.
    pub auditor_sig: EddsaSignature,
}

impl Confirmation {
    /// The message that the auditor signs.
    #[must_use]
    pub fn message(body: &Body, time: Timestamp) -> AuditorConfirmLiabilities {
        AuditorConfirmLiabilities {
            master_pub: body.master_pub,
            epoch: body.epoch,
            time,
            h_statement: body.hash(),
        }
    }

    /// Checks that it is this auditor's confirmation of a statement.
    ///
    /// # Errors
    /// [`Fault::Auditor`].
    pub fn check(&self, body: &Body, auditor_pub: &EddsaPublicKey) -> Result<(), Fault> {
        let is_right = self.auditor_pub == *auditor_pub
            && (self.master_pub, self.epoch, self.h_statement) == (body.master_pub, body.epoch, body.hash())
            && Self::message(body, self.time).verify(auditor_pub, &self.auditor_sig);
        if is_right { Ok(()) } else { Err(Fault::Auditor) }
    }
}
