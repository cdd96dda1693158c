//! Wallets as scripts: withdraw, pay, take change, one step after the other.
//!
//! Everything that does not depend on answers is prepared in advance: keys and planchets of coins, their
//! signatures for payments (what a coin signs does not include the exchange's signature of it), and the
//! candidates of changes. Only the rest happens during the load: unblinding, the signatures of fresh coins,
//! and writing the requests.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use batzen_crypto::refresh::KAPPA;
use batzen_crypto::{DenomSignature, EddsaPublicKey, EddsaSignature, HashCode, denom};
use batzen_protocol::api::exchange::{
    BatchDepositConfirmation, BlindSignature, BlindSignatures, DepositConfirmation, MeltConfirmation,
};
use batzen_protocol::signatures::{ExchangeConfirmDeposit, ExchangeConfirmMelt, SignedMessage};

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::change::{Change, Terms, Unfinished};
use crate::bench::load::coins::{self, Coin, Planchet};
use crate::bench::load::generator::{Kind, Next, Outgoing, Script};
use crate::bench::load::payments::{Payment, Payments};
use crate::bench::load::prepared::{Sampling, refusal};
use crate::bench::scenarios::world::{self, Denom, World};

/// One in this many sessions has all its answers kept and checked after the run.
const SAMPLE_EVERY: u64 = 16;
/// The most facts kept per thread.
const FACTS_MAX: usize = 4_000;

/// Withdrawals.
pub(crate) const WITHDRAW: usize = 0;
pub(crate) const DEPOSIT: usize = 1;
pub(crate) const MELT: usize = 2;
pub(crate) const REVEAL: usize = 3;
/// Requests for R values.
pub(crate) const CSR: usize = 4;

/// The kinds of requests of a session; those of kind `counted` complete the operations.
pub(crate) fn kinds(counted: usize) -> Vec<Kind> {
    ["withdraw", "deposit", "melt", "reveal", "csr"]
        .into_iter()
        .enumerate()
        .map(|(index, name)| Kind { name, is_counted: index == counted })
        .collect()
}

/// A step of a wallet. Coins are identified by their numbers in the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Withdraws these coins.
    Withdraw(Range<usize>),
    /// Pays with each of these coins: coin number and units.
    Pay(Vec<(usize, u64)>),
    /// Changes the rest of a coin into fresh coins.
    Change {
        /// The coin.
        old: usize,
        /// The rest of it, in units.
        units: u64,
        /// The fresh coins.
        fresh: Range<usize>,
    },
}

/// The steps of a wallet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionPlan {
    /// The denomination of each coin: an index into [`World::denoms`].
    pub(crate) denoms: Vec<usize>,
    /// The steps, in order.
    pub(crate) steps: Vec<Step>,
}

impl SessionPlan {
    /// Coins deposited.
    pub(crate) fn deposits(&self) -> usize {
        let coins = |step: &Step| if let Step::Pay(parts) = step { parts.len() } else { 0 };
        self.steps.iter().map(coins).sum()
    }

    /// Coins withdrawn.
    pub(crate) fn withdrawals(&self) -> usize {
        let coins = |step: &Step| if let Step::Withdraw(coins) = step { coins.len() } else { 0 };
        self.steps.iter().map(coins).sum()
    }

    /// The number of changes, and of fresh coins in all of them.
    pub(crate) fn changes(&self) -> (usize, usize) {
        self.steps.iter().fold((0, 0), |(changes, coins), step| match step {
            Step::Change { fresh, .. } => (changes + 1, coins + fresh.len()),
            _ => (changes, coins),
        })
    }
}

/// The state of a coin of a session.
#[derive(Clone, Debug)]
pub(crate) enum CoinState {
    /// Unknown so far: it will come out of a change.
    Unknown,
    /// Ready to be withdrawn.
    Planchet(Planchet),
    /// Signed, but not yet unblinded.
    Unfinished(Unfinished),
    /// Ready to be spent.
    Coin(Coin),
}

/// A wallet at work.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub number: u64,
    /// Its steps.
    pub(crate) session_plan: Arc<SessionPlan>,
    pub coins: Vec<CoinState>,
    /// The request that withdraws its coins.
    pub withdrawal: Vec<u8>,
    /// The requests for R values that precede it.
    pub questions: VecDeque<Vec<u8>>,
    /// Its payments, in order.
    pub payments: VecDeque<Payment>,
    /// Signatures of its coins for its payments, in the order of their parts; `None` where the coin was not
    /// known in advance.
    pub signatures: VecDeque<Option<EddsaSignature>>,
    /// Its changes, in order; `None` where the old coin was not known in advance.
    pub changes: VecDeque<(Terms, Option<Change>)>,
    step: usize,
    phase: Phase,
}

/// The last request of the current step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Begin,
    Asked,
    Main,
    Revealing(usize),
}

/// A signature of the exchange, to be checked after the run.
#[derive(Clone, Debug)]
pub(crate) enum Fact {
    /// A confirmation of a deposit.
    Deposit(Box<ExchangeConfirmDeposit>, EddsaPublicKey, EddsaSignature),
    /// A confirmation of a melt.
    Melt(HashCode, u32, EddsaPublicKey, EddsaSignature),
    Coin(usize, EddsaPublicKey, DenomSignature),
}

impl Fact {
    /// Returns whether the signature is valid.
    pub(crate) fn holds(&self, world: &World) -> bool {
        match self {
            Self::Deposit(message, key, signature) => {
                world.signing_keys.contains(key) && message.verify(key, signature)
            }
            Self::Melt(refresh_commitment, noreveal_index, key, signature) => {
                let message = ExchangeConfirmMelt {
                    refresh_commitment: *refresh_commitment,
                    noreveal_index: *noreveal_index,
                };
                world.signing_keys.contains(key) && message.verify(key, signature)
            }
            Self::Coin(denom, coin_pub, signature) => {
                world.denoms[*denom].key.verify(&denom::h_coin_pub(coin_pub, None), signature)
            }
        }
    }
}

/// Checks the facts that were kept; returns their number.
pub(crate) fn check(scripts: Vec<Sessions>, world: &World) -> Result<u64> {
    let mut checked = 0;
    for fact in scripts.into_iter().flat_map(|script| script.facts) {
        if !fact.holds(world) {
            return Err(BenchError::WrongAnswer(format!("a signature of the exchange is wrong: {fact:?}")));
        }
        checked += 1;
    }
    Ok(checked)
}

/// Sessions of one thread.
pub(crate) struct Sessions {
    waiting: VecDeque<Session>,
    sampling: Sampling,
    under_way: Vec<Option<Session>>,
    denoms: Arc<Vec<Denom>>,
    payments: Arc<Payments>,
    /// The exchange's signatures that were kept.
    pub(crate) facts: Vec<Fact>,
}

impl Session {
    /// A session that has not begun. Its parts must match its plan.
    pub(crate) fn new(number: u64, session_plan: Arc<SessionPlan>, coins: Vec<CoinState>) -> Self {
        Self {
            number,
            session_plan,
            coins,
            withdrawal: Vec::new(),
            questions: VecDeque::new(),
            payments: VecDeque::new(),
            signatures: VecDeque::new(),
            changes: VecDeque::new(),
            step: 0,
            phase: Phase::Begin,
        }
    }

    /// Makes the signatures and changes of all coins whose keys are known.
    pub(crate) fn prepare(
        &mut self,
        denoms: &[Denom],
        payments: &Payments,
        terms: Vec<(Terms, Option<Vec<batzen_crypto::ExchangeWithdrawValues>>)>,
    ) -> Result<()> {
        let session_plan = Arc::clone(&self.session_plan);
        let mut paying = self.payments.iter();
        let mut terms = terms.into_iter();
        for step in &session_plan.steps {
            match step {
                Step::Withdraw(_) => {}
                Step::Pay(parts) => {
                    let payment = paying.next().expect("a payment for each step that pays");
                    for (coin, units) in parts {
                        let denom = &denoms[session_plan.denoms[*coin]];
                        let signature = self.coins[*coin].keys().map(|(coin_priv, _)| {
                            payments.sign(payment, coin_priv, denom, world::units(*units))
                        });
                        self.signatures.push_back(signature);
                    }
                }
                Step::Change { old, .. } => {
                    let (terms, values) = terms.next().expect("terms for each change");
                    let denom = &denoms[session_plan.denoms[*old]];
                    let change = match (self.coins[*old].keys(), values) {
                        (Some((coin_priv, coin_pub)), Some(values)) => {
                            Some(Change::new(&terms, coin_priv, coin_pub, denom, &values)?)
                        }
                        _ => None,
                    };
                    self.changes.push_back((terms, change));
                }
            }
        }
        Ok(())
    }
}

impl CoinState {
    /// The private and public key, if known.
    fn keys(&self) -> Option<(&batzen_crypto::EddsaPrivateKey, &EddsaPublicKey)> {
        match self {
            Self::Unknown => None,
            Self::Planchet(planchet) | Self::Unfinished(Unfinished { planchet, .. }) => {
                Some((&planchet.coin_priv, &planchet.coin_pub))
            }
            Self::Coin(coin) => Some((&coin.coin_priv, &coin.coin_pub)),
        }
    }
}

impl Sessions {
    /// Divides sessions among threads, each with up to `clients` connections.
    pub(crate) fn share(
        sessions: Vec<Session>,
        threads: usize,
        clients: usize,
        denoms: &[Denom],
        payments: &Payments,
    ) -> Vec<Self> {
        let (denoms, payments) = (Arc::new(denoms.to_vec()), Arc::new(payments.clone()));
        let sampling = Sampling::new(sessions.first().map_or(0, |session| session.number), SAMPLE_EVERY);
        let mut scripts: Vec<Self> = (0..threads)
            .map(|_| Self {
                waiting: VecDeque::new(),
                sampling,
                under_way: std::iter::repeat_with(|| None).take(clients).collect(),
                denoms: Arc::clone(&denoms),
                payments: Arc::clone(&payments),
                facts: Vec::new(),
            })
            .collect();
        for (index, session) in sessions.into_iter().enumerate() {
            scripts[index % threads].waiting.push_back(session);
        }
        scripts
    }

    /// The next request of a session; `None` if the session is finished.
    fn request(&mut self, session: &mut Session) -> Result<Option<Outgoing>> {
        let session_plan = Arc::clone(&session.session_plan);
        let Some(step) = session_plan.steps.get(session.step) else { return Ok(None) };
        let (bytes, kind) = match step {
            Step::Withdraw(_) => match session.questions.pop_front() {
                Some(question) => {
                    session.phase = Phase::Asked;
                    (question, CSR)
                }
                None => {
                    session.phase = Phase::Main;
                    (std::mem::take(&mut session.withdrawal), WITHDRAW)
                }
            },
            Step::Pay(parts) => {
                session.phase = Phase::Main;
                (self.payment(session, &session_plan, parts)?, DEPOSIT)
            }
            Step::Change { old, .. } => {
                let needs_values = session.changes.front().is_some_and(|(terms, _)| terms.needs_values());
                match session.phase {
                    Phase::Begin if needs_values => {
                        session.phase = Phase::Asked;
                        (
                            session.changes.front().map(|(terms, _)| terms.csr_request()).unwrap_or_default(),
                            CSR,
                        )
                    }
                    Phase::Revealing(index) => {
                        let change = session.changes.front().and_then(|(_, change)| change.as_ref());
                        (change.map(|change| change.reveal(index)).unwrap_or_default(), REVEAL)
                    }
                    _ => {
                        session.phase = Phase::Main;
                        (self.melt(session, &session_plan, *old)?, MELT)
                    }
                }
            }
        };
        Ok(Some(Outgoing { bytes, kind }))
    }

    /// A coin that can be spent.
    fn coin<'a>(
        &mut self,
        session: &'a mut Session,
        session_plan: &SessionPlan,
        number: usize,
    ) -> Result<&'a Coin> {
        if let CoinState::Unfinished(_) = &session.coins[number] {
            let CoinState::Unfinished(Unfinished { planchet, blind }) =
                std::mem::replace(&mut session.coins[number], CoinState::Unknown)
            else {
                unreachable!("just seen")
            };
            let denom = session_plan.denoms[number];
            let coin = planchet.finish(denom, &self.denoms[denom], &blind)?;
            self.keep(session.number, || vec![Fact::Coin(denom, coin.coin_pub, coin.signature.clone())]);
            session.coins[number] = CoinState::Coin(coin);
        }
        match &session.coins[number] {
            CoinState::Coin(coin) => Ok(coin),
            _ => Err(BenchError::WrongAnswer(format!("coin {number} of a session was never signed"))),
        }
    }

    fn payment(
        &mut self,
        session: &mut Session,
        session_plan: &SessionPlan,
        parts: &[(usize, u64)],
    ) -> Result<Vec<u8>> {
        let payment = session.payments.front().cloned().expect("a payment for each step that pays");
        let mut made = Vec::with_capacity(parts.len());
        for (number, units) in parts {
            let signature = session.signatures.pop_front().flatten();
            let coin = self.coin(session, session_plan, *number)?;
            let (denom, amount) = (&self.denoms[coin.denom], world::units(*units));
            let signature =
                signature.unwrap_or_else(|| self.payments.sign(&payment, &coin.coin_priv, denom, amount));
            made.push(self.payments.part(coin, denom, amount, signature));
        }
        Ok(self.payments.request(&payment, made))
    }

    fn melt(&mut self, session: &mut Session, session_plan: &SessionPlan, old: usize) -> Result<Vec<u8>> {
        let coin = self.coin(session, session_plan, old)?.clone();
        let (terms, change) = session.changes.front_mut().expect("terms for each change");
        let change = match change {
            Some(change) => change,
            None => {
                let denom = &self.denoms[coin.denom];
                change.insert(Change::new(terms, &coin.coin_priv, &coin.coin_pub, denom, &terms.no_values())?)
            }
        };
        Ok(change.melt(&coin.signature))
    }

    /// Handles an answer; returns how many items of its kind it completes.
    fn take(&mut self, session: &mut Session, body: &[u8]) -> Result<u64> {
        let session_plan = Arc::clone(&session.session_plan);
        let step = session_plan.steps.get(session.step).expect("an answer belongs to a step");
        match (step, session.phase) {
            (Step::Withdraw(_), Phase::Asked) => Ok(0),
            (Step::Withdraw(coins), _) => {
                let signatures = if coins.len() == 1 {
                    vec![coins::read::<BlindSignature>("withdraw", body)?]
                } else {
                    coins::read::<BlindSignatures>("batch-withdraw", body)?.ev_sigs
                };
                if signatures.len() != coins.len() {
                    return Err(BenchError::WrongAnswer("withdraw: wrong number of signatures".into()));
                }
                for (number, signature) in coins.clone().zip(signatures) {
                    if let CoinState::Planchet(planchet) =
                        std::mem::replace(&mut session.coins[number], CoinState::Unknown)
                    {
                        session.coins[number] =
                            CoinState::Unfinished(Unfinished { planchet, blind: signature.ev_sig });
                    }
                }
                session.go_on();
                Ok(coins.len() as u64)
            }
            (Step::Pay(parts), _) => {
                self.paid(session, parts, body)?;
                session.payments.pop_front();
                session.go_on();
                Ok(parts.len() as u64)
            }
            (Step::Change { old, .. }, Phase::Asked) => {
                // Changes that were prepared in advance are complete already.
                if let Some((terms, change @ None)) = session.changes.front_mut()
                    && let Some((coin_priv, coin_pub)) = session.coins[*old].keys()
                {
                    let values = terms.csr_answer(body)?;
                    let denom = &self.denoms[session_plan.denoms[*old]];
                    *change = Some(Change::new(terms, coin_priv, coin_pub, denom, &values)?);
                }
                Ok(0)
            }
            (Step::Change { fresh, .. }, Phase::Revealing(index)) => {
                let signatures = coins::read::<BlindSignatures>("reveal", body)?.ev_sigs;
                let change = session.changes.pop_front().and_then(|(_, change)| change);
                let planchets = change.map(|change| change.into_planchets(index)).unwrap_or_default();
                if signatures.len() != fresh.len() || planchets.len() != fresh.len() {
                    return Err(BenchError::WrongAnswer("reveal: wrong number of signatures".into()));
                }
                for ((number, planchet), signature) in fresh.clone().zip(planchets).zip(signatures) {
                    session.coins[number] =
                        CoinState::Unfinished(Unfinished { planchet, blind: signature.ev_sig });
                }
                session.go_on();
                Ok(fresh.len() as u64)
            }
            (Step::Change { .. }, _) => {
                let answer: MeltConfirmation = coins::read("melt", body)?;
                let index = answer.noreveal_index as usize;
                if index >= KAPPA {
                    return Err(BenchError::WrongAnswer("melt: no such candidate".into()));
                }
                let rc = session.changes.front().and_then(|(_, change)| Some(change.as_ref()?.rc));
                if let Some(rc) = rc {
                    self.keep(session.number, || {
                        vec![Fact::Melt(rc, answer.noreveal_index, answer.exchange_pub, answer.exchange_sig)]
                    });
                }
                session.phase = Phase::Revealing(index);
                Ok(1)
            }
        }
    }

    fn paid(&mut self, session: &Session, parts: &[(usize, u64)], body: &[u8]) -> Result<()> {
        if !self.is_kept(session.number) {
            return Ok(());
        }
        let (time, key, signatures) = if parts.len() == 1 {
            let answer: DepositConfirmation = coins::read("deposit", body)?;
            (answer.exchange_timestamp, answer.exchange_pub, vec![answer.exchange_sig])
        } else {
            let answer: BatchDepositConfirmation = coins::read("batch-deposit", body)?;
            let signatures = answer.exchange_sigs.iter().map(|signature| signature.exchange_sig).collect();
            (answer.exchange_timestamp, answer.exchange_pub, signatures)
        };
        if signatures.len() != parts.len() {
            return Err(BenchError::WrongAnswer("deposit: wrong number of confirmations".into()));
        }
        let payment = session.payments.front().expect("a payment for each step that pays");
        for ((coin, units), signature) in parts.iter().zip(signatures) {
            if let Some((_, coin_pub)) = session.coins[*coin].keys() {
                let message = self.payments.confirmation(payment, *coin_pub, world::units(*units), time);
                self.facts.push(Fact::Deposit(Box::new(message), key, signature));
            }
        }
        Ok(())
    }

    fn is_kept(&self, session: u64) -> bool {
        self.sampling.includes(session) && self.facts.len() < FACTS_MAX
    }

    fn keep(&mut self, session: u64, facts: impl FnOnce() -> Vec<Fact>) {
        if self.is_kept(session) {
            self.facts.extend(facts());
        }
    }
}

impl Session {
    fn go_on(&mut self) {
        self.step += 1;
        self.phase = Phase::Begin;
    }
}

impl Script for Sessions {
    fn begin(&mut self, slot: usize) -> Option<Outgoing> {
        let mut session = self.waiting.pop_front()?;
        // It cannot fail: the first request was prepared in advance, or is about a known coin.
        let request = self.request(&mut session).ok().flatten();
        self.under_way[slot] = Some(session);
        request
    }

    fn answer(&mut self, slot: usize, status: u16, body: &[u8]) -> (u64, Next) {
        if status != 200 {
            return (0, Next::Failed(refusal(status, body)));
        }
        let mut session = self.under_way[slot].take().expect("an answer belongs to a session");
        let taken = self.take(&mut session, body);
        let outcome = taken.and_then(|count| Ok((count, self.request(&mut session)?)));
        match outcome {
            Err(error) => (0, Next::Failed(error.to_string())),
            Ok((count, None)) => (count, Next::Done),
            Ok((count, Some(outgoing))) => {
                self.under_way[slot] = Some(session);
                (count, Next::Send(outgoing))
            }
        }
    }
}
