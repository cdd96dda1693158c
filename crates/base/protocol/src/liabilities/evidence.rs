//! Proofs of fraud that anyone can check with the exchange's master key alone.

use crate::{Timestamp, limits};
use batzen_crypto::EddsaPublicKey;
use serde::{Deserialize, Serialize};

use crate::liabilities::CLOCK_SKEW;
use crate::liabilities::files::EPOCHS_MAX;
use crate::liabilities::leaf::{self, Kind};
use crate::liabilities::receipt::Receipt;
use crate::liabilities::statement::{self, Head, Statement};
use crate::liabilities::tree::{self, Bucket};

/// An epoch in which a signature is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The statement.
    pub statement: Statement,
    /// The bucket in which the signature would be; none if the epoch issued nothing of the denomination, or is older than
    /// the signature.
    pub bucket: Option<Bucket>,
}

/// A signature that the exchange has confirmed and does not count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Omitted {
    /// The exchange's receipt.
    pub receipt: Receipt,
    /// The epochs in which it could be, oldest first, after one that is certainly older than it (unless the first is
    /// epoch 1).
    #[serde(deserialize_with = "limits::array::<_, _, EPOCHS_MAX>")]
    pub epochs: Vec<Gap>,
}

/// Two statements of one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewritten {
    /// The signed head of one.
    pub one: Head,
    /// The signed head of the other.
    pub other: Head,
}

/// A statement that does not follow from the one before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    /// The statement before it; none: it is the first.
    pub before: Option<Statement>,
    /// The statement.
    pub statement: Statement,
}

/// The exchange's fraud.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Fraud {
    /// It does not count a signature that it has confirmed.
    Omitted(Box<Omitted>),
    /// It has signed two statements for one epoch.
    Rewritten(Box<Rewritten>),
    /// It has signed a statement whose totals do not follow.
    Broken(Box<Broken>),
}

/// A proof of fraud.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The version of its form.
    pub(crate) batzen_liabilities_evidence: u32,
    /// The exchange's master key.
    pub master_pub: EddsaPublicKey,
    pub(crate) fraud: Fraud,
}

/// The fraud that checked evidence proves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// A signature of this time is not counted by the end of this epoch.
    Omitted {
        /// When the exchange signed.
        signed: Timestamp,
        /// The last epoch that had to count it.
        epoch: u64,
    },
    /// There are two statements for this epoch.
    Rewritten {
        /// The epoch.
        epoch: u64,
    },
    /// The statement of this epoch does not follow from the one before it.
    Broken {
        /// The epoch.
        epoch: u64,
        /// Why.
        why: String,
    },
}

impl std::fmt::Display for Judgement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Omitted { signed, epoch } => {
                write!(
                    f,
                    "the exchange signed a coin at {signed} and does not count it by the end of epoch {epoch}"
                )
            }
            Self::Rewritten { epoch } => write!(f, "the exchange signed two statements for epoch {epoch}"),
            Self::Broken { epoch, why } => {
                write!(f, "the exchange signed a statement for epoch {epoch} that cannot be right: {why}")
            }
        }
    }
}

/// Why evidence proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoProof {
    /// The version is unknown.
    #[error("version {0} is unknown")]
    Version(u32),
    /// A signature of the exchange is not valid.
    #[error("a signature is not valid: {0}")]
    Signature(String),
    /// The statements are not consecutive.
    #[error("the statements are not consecutive")]
    Gaps,
    /// The signature may be in an epoch before the first statement.
    #[error("the signature may be counted in an epoch before epoch {0}")]
    Before(u64),
    /// The signature need not be counted yet.
    #[error("the signature need not be counted by the end of epoch {0}")]
    NotDue(u64),
    /// The signature is counted.
    #[error("the signature is counted in epoch {0}")]
    Counted(u64),
    /// A bucket is missing, or is not the one of the statement.
    #[error("the bucket of epoch {0} is not the one that the statement names")]
    Bucket(u64),
    /// Both statements say the same.
    #[error("the statements do not contradict each other")]
    Same,
    /// Nothing is wrong with the statement.
    #[error("the statement follows from the one before it")]
    Sound,
}

impl Evidence {
    /// Evidence against the exchange with this master key.
    #[must_use]
    pub fn new(master_pub: EddsaPublicKey, fraud: Fraud) -> Self {
        Self { batzen_liabilities_evidence: 1, master_pub, fraud }
    }

    /// Checks it.
    ///
    /// # Errors
    /// Why it proves nothing.
    pub fn judge(&self) -> Result<Judgement, NoProof> {
        if self.batzen_liabilities_evidence != 1 {
            return Err(NoProof::Version(self.batzen_liabilities_evidence));
        }
        let is_signed = |statement: &Statement| {
            let checked = statement.check_signature(&self.master_pub);
            checked
                .map_err(|fault| NoProof::Signature(format!("epoch {}: {fault}", statement.statement.epoch)))
        };
        match &self.fraud {
            Fraud::Omitted(omitted) => {
                let checked = omitted.receipt.check(&self.master_pub);
                checked.map_err(|fault| NoProof::Signature(format!("receipt: {fault}")))?;
                omitted.epochs.iter().try_for_each(|gap| is_signed(&gap.statement))?;
                omitted.judge()
            }
            Fraud::Rewritten(both) => {
                let (one, other) = (&both.one, &both.other);
                for head in [one, other] {
                    let checked = head.check(&self.master_pub);
                    checked.map_err(|fault| NoProof::Signature(format!("epoch {}: {fault}", head.epoch)))?;
                }
                if one.epoch != other.epoch || one.h_statement == other.h_statement {
                    return Err(NoProof::Same);
                }
                Ok(Judgement::Rewritten { epoch: one.epoch })
            }
            Fraud::Broken(both) => {
                both.before.as_ref().map_or(Ok(()), is_signed)?;
                is_signed(&both.statement)?;
                let (body, before) = (&both.statement.statement, both.before.as_ref());
                if body.version != statement::VERSION {
                    return Err(NoProof::Version(body.version));
                }
                // Two statements that nobody called consecutive prove nothing.
                let is_next = before.map_or(Some(1), |before| before.statement.epoch.checked_add(1));
                if is_next != Some(body.epoch) {
                    return Err(NoProof::Gaps);
                }
                match body.check_after(before.map(|before| &before.statement)) {
                    Ok(()) => Err(NoProof::Sound),
                    Err(why) => Ok(Judgement::Broken { epoch: body.epoch, why: why.to_string() }),
                }
            }
        }
    }
}

impl Omitted {
    fn judge(&self) -> Result<Judgement, NoProof> {
        let signed = self.receipt.timestamp;
        let (Some(first), Some(last)) = (self.epochs.first(), self.epochs.last()) else {
            return Err(NoProof::Gaps);
        };
        let (first, last) = (&first.statement.statement, &last.statement.statement);
        let follows = |pair: &[Gap]| {
            let (one, next) = (&pair[0].statement.statement, &pair[1].statement.statement);
            Some(next.epoch) == one.epoch.checked_add(1) && next.previous == one.hash()
        };
        if !self.epochs.windows(2).all(follows) {
            return Err(NoProof::Gaps);
        }
        if first.epoch != 1 && !is_before(first.taken, signed) {
            return Err(NoProof::Before(first.epoch));
        }
        if !is_due(last.end, signed) {
            return Err(NoProof::NotDue(last.epoch));
        }
        let leaf = leaf::issued(&self.receipt.h_denom_pub, &self.receipt.h_coin_ev);
        for gap in &self.epochs {
            let body = &gap.statement.statement;
            if is_before(body.taken, signed) {
                continue;
            }
            let Some(entry) = body.entry(&self.receipt.h_denom_pub) else { continue };
            let part = entry.part(Kind::Issued);
            let Some(bucket) = &gap.bucket else {
                if part.root == tree::Node::empty() {
                    continue;
                }
                return Err(NoProof::Bucket(body.epoch));
            };
            let place = tree::place(&leaf, part.bits.min(tree::BITS_MAX));
            bucket.check(place, part.bits, &part.root).map_err(|_| NoProof::Bucket(body.epoch))?;
            if bucket.find(&leaf).is_some() {
                return Err(NoProof::Counted(body.epoch));
            }
        }
        Ok(Judgement::Omitted { signed, epoch: last.epoch })
    }
}

/// Returns whether a row of this time must be counted by an epoch with this end: with an hour of grace, so that a late
/// commit or a wrong clock is no fraud.
#[must_use]
pub fn is_due(end: Timestamp, time: Timestamp) -> bool {
    time.saturating_add(CLOCK_SKEW) < end
}

/// Returns whether an epoch that was read at `taken` cannot have a row of this time yet.
#[must_use]
pub fn is_before(taken: Timestamp, time: Timestamp) -> bool {
    taken.saturating_add(CLOCK_SKEW) < time
}

#[cfg(test)]
mod tests {
    use crate::signatures::{MasterSigningKeyValidity, SignedMessage};
    use crate::{Currency, Duration, MoneySum};
    use batzen_crypto::{EddsaPrivateKey, HashCode};

    use super::*;
    use crate::liabilities::leaf::Leaf;
    use crate::liabilities::statement::{Body, Entry, Fault, Part, SigningKey, VERSION};
    use crate::liabilities::tree::Tree;

    const DAY: u64 = 86_400;

    /// An exchange that publishes an epoch a day.
    struct World {
        master: EddsaPrivateKey,
        online: EddsaPrivateKey,
        denom: HashCode,
        statements: Vec<Statement>,
        trees: Vec<Tree>,
    }

    impl World {
        fn new() -> Self {
            Self {
                master: EddsaPrivateKey::from_bytes([1; 32]),
                online: EddsaPrivateKey::from_bytes([2; 32]),
                denom: HashCode::from_bytes([3; 64]),
                statements: Vec::new(),
                trees: Vec::new(),
            }
        }

        fn signing_key(&self) -> SigningKey {
            let (start, expire, end) = (Timestamp::ZERO, Timestamp::from_secs(900 * DAY), Timestamp::NEVER);
            let message =
                MasterSigningKeyValidity { start, expire, end, signkey_pub: self.online.public_key() };
            SigningKey {
                key: self.online.public_key(),
                stamp_start: start,
                stamp_expire: expire,
                stamp_end: end,
                master_sig: message.sign(&self.master),
            }
        }

        fn sign(&self, body: Body) -> Statement {
            let exchange_sig = body.message().sign(&self.online);
            Statement { statement: body, exchange_sig, signing_key: self.signing_key() }
        }

        fn leaf(&self, ev: u8) -> Leaf {
            let hash = leaf::issued(&self.denom, &HashCode::from_bytes([ev; 64]));
            Leaf { hash, sum: MoneySum::from_units(500) }
        }

        /// Publishes an epoch that issues these planchets.
        fn publish(&mut self, evs: &[u8], bits: u8) {
            let tree = Tree::new(evs.iter().map(|ev| self.leaf(*ev)).collect(), bits).unwrap();
            let before = self.statements.last().map(|statement| &statement.statement);
            let epoch = before.map_or(1, |before| before.epoch + 1);
            let end = Timestamp::from_secs(epoch * DAY);
            let earlier = before.and_then(|before| before.entry(&self.denom)).cloned();
            let part = |kind, tree: &Tree| {
                let before = earlier.as_ref().map(|entry: &Entry| *entry.part(kind));
                Part::after(before.as_ref(), tree).unwrap()
            };
            let none = Tree::new(Vec::new(), 0).unwrap();
            let entry = Entry {
                h_denom_pub: self.denom,
                value: MoneySum::from_units(500),
                until: Timestamp::from_secs(10_000 * DAY),
                issued: part(Kind::Issued, &tree),
                redeemed: part(Kind::Redeemed, &none),
                returned: part(Kind::Returned, &none),
            };
            let body = Body {
                version: VERSION,
                master_pub: self.master.public_key(),
                currency: "KUDOS".parse::<Currency>().unwrap(),
                epoch,
                start: before.map_or(Timestamp::ZERO, |before| before.end),
                end,
                taken: end.saturating_add(Duration::from_secs(600)),
                previous: before.map_or(HashCode::ZERO, Body::hash),
                denominations: vec![entry],
            };
            body.check_after(before).unwrap();
            let signed = self.sign(body);
            signed.check_signature(&self.master.public_key()).unwrap();
            self.statements.push(signed);
            self.trees.push(tree);
        }

        fn receipt(&self, ev: u8, secs: u64) -> Receipt {
            let mut receipt = Receipt {
                timestamp: Timestamp::from_secs(secs),
                h_denom_pub: self.denom,
                h_coin_ev: HashCode::from_bytes([ev; 64]),
                exchange_sig: batzen_crypto::EddsaSignature::from_bytes([0; 64]),
                signing_key: self.signing_key(),
            };
            receipt.exchange_sig = receipt.message().sign(&self.online);
            receipt
        }

        fn omitted(&self, receipt: Receipt, epochs: std::ops::Range<usize>) -> Evidence {
            let hash = leaf::issued(&receipt.h_denom_pub, &receipt.h_coin_ev);
            let gap = |n: usize| {
                let tree = &self.trees[n];
                let is_empty = tree.leaves().is_empty();
                let bucket = (!is_empty).then(|| tree.bucket(tree::place(&hash, tree.bits())));
                Gap { statement: self.statements[n].clone(), bucket }
            };
            let omitted = Omitted { receipt, epochs: epochs.map(gap).collect() };
            Evidence::new(self.master.public_key(), Fraud::Omitted(Box::new(omitted)))
        }
    }

    fn world() -> World {
        let mut world = World::new();
        world.publish(&(0..40).collect::<Vec<_>>(), 2);
        world.publish(&(40..70).collect::<Vec<_>>(), 1);
        world.publish(&[], 0);
        world.publish(&[90, 91], 0);
        world
    }

    #[test]
    fn what_is_confirmed_and_not_counted_is_proved() {
        let world = world();
        let (day_two, day_three) = (DAY + DAY / 2, 2 * DAY + DAY / 2);
        let omitted = |signed, epoch| Ok(Judgement::Omitted { signed: Timestamp::from_secs(signed), epoch });
        let evidence = |secs, epochs| world.omitted(world.receipt(200, secs), epochs).judge();
        assert_eq!(evidence(day_two, 0..2), omitted(day_two, 2));
        assert_eq!(evidence(day_two, 0..4), omitted(day_two, 4));
        assert_eq!(evidence(day_three, 1..4), omitted(day_three, 4));
        // Epoch 2 was read shortly before: it may have the signature, so the proof must begin there or before.
        let soon = 2 * DAY + 601;
        assert_eq!(evidence(soon, 2..3), Err(NoProof::Before(3)));
        assert_eq!(evidence(soon, 1..3), Err(NoProof::Before(2)));
        assert_eq!(evidence(soon, 0..3), omitted(soon, 3));
        // Not yet due.
        assert_eq!(evidence(2 * DAY, 0..2), Err(NoProof::NotDue(2)));
        assert_eq!(evidence(day_two, 0..1), Err(NoProof::NotDue(1)));
        assert_eq!(evidence(day_two, 0..0), Err(NoProof::Gaps));
        // Counted ones, in the epoch of their date and in the one before it.
        assert_eq!(world.omitted(world.receipt(50, day_two), 0..2).judge(), Err(NoProof::Counted(2)));
        assert_eq!(world.omitted(world.receipt(20, DAY + 300), 0..2).judge(), Err(NoProof::Counted(1)));
    }

    #[test]
    fn evidence_that_was_tampered_with_proves_nothing() {
        let world = world();
        let good = world.omitted(world.receipt(50, DAY + DAY / 2), 0..2);
        let change = |change: &dyn Fn(&mut Omitted)| {
            let mut evidence = good.clone();
            let Fraud::Omitted(omitted) = &mut evidence.fraud else { unreachable!() };
            change(omitted);
            evidence.judge()
        };
        // The counted leaf is taken out of the bucket.
        let hash = world.leaf(50).hash;
        let without = |omitted: &mut Omitted| {
            omitted.epochs[1].bucket.as_mut().unwrap().leaves.retain(|leaf| leaf.hash != hash);
        };
        assert_eq!(change(&without), Err(NoProof::Bucket(2)));
        assert_eq!(change(&|omitted| omitted.epochs[1].bucket = None), Err(NoProof::Bucket(2)));
        let other = world.trees[1].bucket(1 - tree::place(&hash, 1));
        assert_eq!(
            change(&|omitted| omitted.epochs[1].bucket = Some(other.clone())),
            Err(NoProof::Bucket(2))
        );
        // Another planchet, another date, another key.
        let is_unsigned = |judged: Result<Judgement, NoProof>| matches!(judged, Err(NoProof::Signature(_)));
        assert!(is_unsigned(change(&|omitted| omitted.receipt.h_coin_ev = HashCode::from_bytes([9; 64]))));
        assert!(is_unsigned(change(&|omitted| omitted.receipt.timestamp = Timestamp::ZERO)));
        assert!(is_unsigned(change(&|omitted| omitted.receipt.signing_key.key = world.master.public_key())));
        assert!(is_unsigned(
            change(&|omitted| omitted.epochs[0].statement.statement.taken = Timestamp::ZERO)
        ));
        // A statement is left out.
        let mut far = world.omitted(world.receipt(200, DAY + DAY / 2), 0..4);
        let Fraud::Omitted(omitted) = &mut far.fraud else { unreachable!() };
        omitted.epochs.remove(1);
        assert_eq!(far.judge(), Err(NoProof::Gaps));
        let other = Evidence { master_pub: world.online.public_key(), ..good };
        assert!(is_unsigned(other.judge()));
    }

    #[test]
    fn two_stories_are_proved() {
        let (one, mut other) = (world(), World::new());
        other.publish(&(0..39).collect::<Vec<_>>(), 2);
        let pair = |one: &Statement, other: &Statement| {
            let both = Rewritten { one: one.head(), other: other.head() };
            Evidence::new(World::new().master.public_key(), Fraud::Rewritten(Box::new(both))).judge()
        };
        assert_eq!(pair(&one.statements[0], &other.statements[0]), Ok(Judgement::Rewritten { epoch: 1 }));
        assert_eq!(pair(&one.statements[0], &one.statements[0]), Err(NoProof::Same));
        assert_eq!(pair(&one.statements[0], &one.statements[1]), Err(NoProof::Same));
    }

    #[test]
    fn totals_that_do_not_follow_are_proved() {
        let world = world();
        let before = world.statements[1].clone();
        let judge = |body: Body| {
            let both = Broken { before: Some(before.clone()), statement: world.sign(body) };
            Evidence::new(world.master.public_key(), Fraud::Broken(Box::new(both))).judge()
        };
        let good = world.statements[2].statement.clone();
        assert_eq!(judge(good.clone()), Err(NoProof::Sound));
        assert_eq!(judge(world.statements[3].statement.clone()), Err(NoProof::Gaps));
        let changed = |change: &dyn Fn(&mut Body)| {
            let mut body = good.clone();
            change(&mut body);
            body
        };
        type Case<'a> = (&'a dyn Fn(&mut Body), Fault);
        let cases: [Case; 9] = [
            (&|body| body.denominations[0].issued.total = MoneySum::ZERO, Fault::Totals(world.denom)),
            (&|body| body.denominations[0].issued.total_count += 1, Fault::Totals(world.denom)),
            (
                &|body| {
                    let part = &mut body.denominations[0].redeemed;
                    part.root.sum = MoneySum::from_units(1_000_000);
                    part.total = part.root.sum;
                },
                Fault::Overdrawn(world.denom),
            ),
            (
                &|body| {
                    let part = &mut body.denominations[0].issued;
                    part.root.sum = MoneySum::from_units(1);
                    part.total = part.total.checked_add(MoneySum::from_units(1)).unwrap();
                },
                Fault::Value(world.denom),
            ),
            (&|body| body.denominations.clear(), Fault::Denomination(world.denom)),
            (&|body| body.denominations[0].value = MoneySum::ZERO, Fault::Denomination(world.denom)),
            (&|body| body.previous = HashCode::ZERO, Fault::Chain(2)),
            (&|body| body.start = Timestamp::ZERO, Fault::Chain(2)),
            (&|body| body.taken = body.start, Fault::Times),
        ];
        for (change, fault) in cases {
            let body = changed(change);
            assert_eq!(body.check_after(Some(&before.statement)), Err(fault.clone()));
            let judged = Judgement::Broken { epoch: 3, why: fault.to_string() };
            assert_eq!(judge(body), Ok(judged));
        }
        assert_eq!(judge(changed(&|body| body.version = 2)), Err(NoProof::Version(2)));
    }

    #[test]
    fn documents_survive_json() {
        let world = world();
        let evidence = world.omitted(world.receipt(200, DAY + DAY / 2), 0..4);
        let json = crate::liabilities::to_json(&evidence);
        if std::env::var_os("BATZEN_BLESS").is_some() {
            let corpus =
                std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/liabilities");
            std::fs::write(corpus.join("04"), &json).unwrap();
            std::fs::write(corpus.join("05"), crate::liabilities::to_json(&world.receipt(1, 5))).unwrap();
        }
        assert_eq!(crate::liabilities::parse::<Evidence>(&json).unwrap(), evidence);
        assert!(crate::liabilities::parse::<Evidence>(&json[1..]).is_err());
        for statement in &world.statements {
            assert_eq!(
                crate::liabilities::parse::<Statement>(&crate::liabilities::to_json(statement)).unwrap(),
                *statement
            );
        }
    }

    /// A hash of this crate's own, so that no change of the encoding goes unnoticed.
    #[test]
    fn statements_keep_their_hashes() {
        let hash = world().statements[3].statement.hash().to_string();
        assert_eq!(
            hash,
            "Z9Z811CNR678YN7J37RHVXGW78A7B5NKYTD052DH1KJW4AFB9MNED8T0VQZX00C41054DX6KGCWZ37SJ06PHSMPWE22BAH94KBEZ6ER"
        );
    }
}
