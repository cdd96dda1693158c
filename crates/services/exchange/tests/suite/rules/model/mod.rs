//! A naive exchange: plain maps, one command at a time, balances summed from logs whenever they are needed.
//! Written from the text of the rules and not from their code, so that a comparison can find mistakes in
//! either.

mod kyc;
mod purses;
mod refresh;

use std::collections::{BTreeMap, BTreeSet};

use batzen_crypto::{
    BlindedDenomSignature, CsNonce, EddsaPublicKey, EddsaSignature, HashCode, ShortHash, Wtid,
};
use batzen_exchange::rules::{
    Answer, CloseReserve, Closed, Command, ConflictReason, Credited, Credits, DenomProblem, DenomTerms,
    Deposit, Deposited, DepositedCoin, HistoryPaid, KycAlertCleared, PresentedCoin, Refund, Refunded,
    Refusal, ReserveHistory, ReserveOpened, RulesConfig, TransferMarked, Withdraw, Withdrawn,
};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::exchange::{DenomSerial, DepositKey, FreshCoin, KycOperation};

use kyc::Customers;
use purses::Purse;

/// Hundred-millionths of the currency, signed.
type Units = i128;

fn u(money: Money) -> Units {
    i128::try_from(money.units()).unwrap()
}

fn money(units: Units) -> Money {
    Money::from_units(u128::try_from(units).expect("never negative")).unwrap()
}

/// Why the model refuses: the rules' refusal as text, without the evidence.
pub(super) type Reason = String;

/// A refusal of the rules in the model's words.
pub(super) fn reason(refusal: &Refusal) -> Reason {
    match refusal {
        Refusal::ReserveInsufficient(shortage) => short_reserve(&shortage.reserve_pub, shortage.requested),
        Refusal::CoinConflict { index, conflict } => conflicting(*index, &conflict.coin_pub, conflict.reason),
        other => format!("{other:?}"),
    }
}

fn short_reserve(reserve_pub: &EddsaPublicKey, requested: Money) -> Reason {
    format!("reserve {reserve_pub} lacks {requested}")
}

fn conflicting(index: usize, coin_pub: &EddsaPublicKey, reason: ConflictReason) -> Reason {
    format!("coin {index} {coin_pub}: {reason:?}")
}

/// The resource that must become available before a refused command is worth another attempt.
enum Shortage {
    Reserve(EddsaPublicKey, Units),
    Coin(EddsaPublicKey, Units),
}

struct Refused(Reason, Option<Shortage>);

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self(reason(&refusal), None)
    }
}

/// The refusal of a coin that contradicts its history.
fn conflict(index: usize, coin_pub: &EddsaPublicKey, reason: ConflictReason) -> Refused {
    Refused(conflicting(index, coin_pub, reason), None)
}

type Step<T> = Result<T, Refused>;

#[derive(Clone, Default)]
struct Reserve {
    log: Vec<Units>,
    expiration: Timestamp,
    gc: Timestamp,
    origin: Option<ShortHash>,
    closings: u32,
}

impl Reserve {
    fn balance(&self) -> Units {
        self.log.iter().sum()
    }
}

#[derive(Clone)]
struct Coin {
    denom: u32,
    h_age: Option<ShortHash>,
    log: Vec<Units>,
    zombie: bool,
    recoups: Vec<(EddsaPublicKey, Money, Timestamp)>,
    recoup_refreshes: Vec<(EddsaPublicKey, Money, Timestamp)>,
}

#[derive(Clone)]
struct Payment {
    amount: Units,
    sig: EddsaSignature,
    h_payto: ShortHash,
    wallet_time: Timestamp,
    exchange_time: Timestamp,
    refund_deadline: Timestamp,
    wire_deadline: Timestamp,
    refunds: BTreeMap<u64, Units>,
    wtid: Option<Wtid>,
}

impl Payment {
    fn refunded(&self) -> Units {
        self.refunds.values().sum()
    }
}

#[derive(Clone)]
struct Refresh {
    amount: Units,
    index: u8,
    fresh: Option<Vec<FreshCoin>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Sent {
    Open,
    Done,
    Failed,
}

/// The naive exchange.
#[derive(Clone)]
pub(super) struct Model {
    pub denoms: BTreeMap<u32, DenomTerms>,
    pub revoked: BTreeSet<u32>,
    config: RulesConfig,
    fees: Vec<(Timestamp, Timestamp, Units, Units)>,
    method: String,
    targets: BTreeMap<ShortHash, String>,
    credits: BTreeMap<(EddsaPublicKey, u64), Units>,
    reserves: BTreeMap<EddsaPublicKey, Reserve>,
    histories: BTreeMap<(EddsaPublicKey, Timestamp), Units>,
    withdrawals: BTreeMap<(EddsaPublicKey, HashCode), (u32, BlindedDenomSignature)>,
    nonces: BTreeMap<(bool, CsNonce), HashCode>,
    coins: BTreeMap<EddsaPublicKey, Coin>,
    deposits: BTreeMap<DepositKey, Payment>,
    melts: BTreeMap<(EddsaPublicKey, HashCode), Refresh>,
    rcs: BTreeMap<HashCode, EddsaPublicKey>,
    transients: BTreeMap<(ShortHash, EddsaPublicKey), (Units, Wtid)>,
    transfers: BTreeMap<Wtid, (Units, Sent)>,
    purses: BTreeMap<EddsaPublicKey, Purse>,
    /// Number of purses that each reserve may have.
    quotas: BTreeMap<EddsaPublicKey, u32>,
    opens: BTreeMap<(EddsaPublicKey, Timestamp), ReserveOpened>,
    /// The most that is paid, to whom, and whether it was.
    close_requests: BTreeMap<(EddsaPublicKey, Timestamp), (Units, ShortHash, bool)>,
    /// Transfers that came after the current aggregation looked.
    unseen_transfers: BTreeSet<Wtid>,
    customers: Customers,
    income: Units,
}

/// The rows that an aggregation can see: deposits, transient aggregates, and transfers by identifier.
#[derive(Clone, Default)]
pub(super) struct Seen {
    deposits: BTreeSet<DepositKey>,
    transients: BTreeSet<(ShortHash, EddsaPublicKey)>,
    transfers: BTreeSet<Wtid>,
}

/// The rows hidden from an aggregation because they came after the aggregation looked.
pub(super) struct Hidden {
    deposits: BTreeMap<DepositKey, Payment>,
    transients: BTreeMap<(ShortHash, EddsaPublicKey), (Units, Wtid)>,
}

/// The balance sheet in the model: wired in, wired out, reserves, outstanding, pending, purses, unrevealed
/// melts, fees.
pub(super) type Books = [Money; 8];

impl Model {
    pub(super) fn new(
        denoms: BTreeMap<u32, DenomTerms>,
        config: RulesConfig,
        method: &str,
        fees: &[(Timestamp, Timestamp, Money, Money)],
    ) -> Self {
        Self {
            denoms,
            revoked: BTreeSet::new(),
            config,
            fees: fees
                .iter()
                .map(|(start, end, wire, closing)| (*start, *end, u(*wire), u(*closing)))
                .collect(),
            method: method.to_owned(),
            targets: BTreeMap::new(),
            credits: BTreeMap::new(),
            reserves: BTreeMap::new(),
            histories: BTreeMap::new(),
            withdrawals: BTreeMap::new(),
            nonces: BTreeMap::new(),
            coins: BTreeMap::new(),
            deposits: BTreeMap::new(),
            melts: BTreeMap::new(),
            rcs: BTreeMap::new(),
            transients: BTreeMap::new(),
            transfers: BTreeMap::new(),
            purses: BTreeMap::new(),
            quotas: BTreeMap::new(),
            opens: BTreeMap::new(),
            close_requests: BTreeMap::new(),
            unseen_transfers: BTreeSet::new(),
            customers: Customers::default(),
            income: 0,
        }
    }

    /// Returns the rows that an aggregation would see now.
    pub(super) fn seen(&self) -> Seen {
        Seen {
            deposits: self.deposits.keys().cloned().collect(),
            transients: self.transients.keys().copied().collect(),
            transfers: self.transfers.keys().copied().collect(),
        }
    }

    /// Returns whether a transfer has this identifier, as seen by an aggregation that only keeps the
    /// identifier for later. An aggregation that pays must check all transfers.
    pub(super) fn has_seen_transfer(&self, wtid: Wtid) -> bool {
        self.transfers.contains_key(&wtid) && !self.unseen_transfers.contains(&wtid)
    }

    /// Hides everything that came after `seen`.
    pub(super) fn hide(&mut self, seen: &Seen) -> Hidden {
        let (old, deposits) =
            std::mem::take(&mut self.deposits).into_iter().partition(|(key, _)| seen.deposits.contains(key));
        self.deposits = old;
        let (old, transients) = std::mem::take(&mut self.transients)
            .into_iter()
            .partition(|(key, _)| seen.transients.contains(key));
        self.transients = old;
        let wtids = self.transfers.keys().copied();
        self.unseen_transfers = wtids.filter(|wtid| !seen.transfers.contains(wtid)).collect();
        Hidden { deposits, transients }
    }

    /// Restores what was hidden.
    pub(super) fn show(&mut self, hidden: Hidden) {
        self.deposits.extend(hidden.deposits);
        self.transients.extend(hidden.transients);
        self.unseen_transfers.clear();
    }

    /// Executes a batch, then executes refused commands again if a later command of the batch has removed the
    /// reason. Returns how many were executed again.
    pub(super) fn batch(
        &mut self,
        commands: &[Command],
        now: Timestamp,
    ) -> (Vec<Result<Answer, Reason>>, usize) {
        let mut verdicts: Vec<Option<Result<Answer, Reason>>> = vec![None; commands.len()];
        let mut open: Vec<usize> = (0..commands.len()).collect();
        let mut reruns = 0;
        while !open.is_empty() {
            let mut shortages = Vec::new();
            for index in open.drain(..) {
                let before = self.clone();
                verdicts[index] = Some(match self.step(&commands[index], now) {
                    Ok(outcome) => Ok(outcome),
                    Err(Refused(reason, shortage)) => {
                        *self = before;
                        shortages.push((index, shortage));
                        Err(reason)
                    }
                });
            }
            for (index, shortage) in shortages {
                let gone = match shortage {
                    None => false,
                    Some(Shortage::Reserve(key, needed)) => self.reserves[&key].balance() >= needed,
                    Some(Shortage::Coin(key, needed)) => {
                        self.coins.get(&key).is_some_and(|coin| self.remaining(coin) >= needed)
                    }
                };
                if gone {
                    reruns += 1;
                    open.push(index);
                }
            }
        }
        (verdicts.into_iter().map(Option::unwrap).collect(), reruns)
    }

    pub(super) fn books(&self) -> Books {
        let mut outstanding = 0;
        for (denom, _) in self.withdrawals.values() {
            outstanding += u(self.denoms[denom].value);
        }
        let mut unrevealed = 0;
        for ((coin_pub, _), melt) in &self.melts {
            match &melt.fresh {
                Some(fresh) => {
                    outstanding +=
                        fresh.iter().map(|coin| u(self.denoms[&coin.denom.0].value)).sum::<Units>();
                }
                None => unrevealed += melt.amount - u(self.denoms[&self.coins[coin_pub].denom].fee_refresh),
            }
        }
        outstanding += self.coins.values().flat_map(|coin| coin.log.iter()).sum::<Units>();
        let mut pending: Units = self.transients.values().map(|(total, _)| total).sum();
        for deposit in self.deposits.values().filter(|deposit| deposit.wtid.is_none()) {
            pending += deposit.amount - deposit.refunded();
        }
        let mut out = 0;
        for (amount, sent) in self.transfers.values() {
            if *sent == Sent::Done {
                out += amount;
            } else {
                pending += amount;
            }
        }
        let reserves = self.reserves.values().map(Reserve::balance).sum();
        let wired_in = self.credits.values().sum();
        let purses = self.purses.values().filter(|purse| purse.is_open()).map(Purse::contributed).sum();
        [wired_in, out, reserves, outstanding, pending, purses, unrevealed, self.income].map(money)
    }

    /// Returns the remainder of each known coin.
    pub(super) fn remainders(&self) -> BTreeMap<EddsaPublicKey, Money> {
        self.coins.iter().map(|(key, coin)| (*key, money(self.remaining(coin)))).collect()
    }

    /// Returns the balance of each reserve, its expiration, and the time from which it may be forgotten.
    pub(super) fn balances(&self) -> BTreeMap<EddsaPublicKey, (Money, Timestamp, Timestamp)> {
        self.reserves
            .iter()
            .map(|(key, reserve)| (*key, (money(reserve.balance()), reserve.expiration, reserve.gc)))
            .collect()
    }

    fn step(&mut self, command: &Command, now: Timestamp) -> Step<Answer> {
        Ok(match command {
            Command::Withdraw(command) => Answer::Withdraw(self.withdraw(command, now)?),
            Command::ReserveHistory(command) => Answer::ReserveHistory(self.history(command)?),
            Command::Credits(command) => Answer::Credits(self.credits(command, now)),
            Command::CloseReserve(command) => Answer::CloseReserve(self.close(command, now)?),
            Command::Deposit(command) => Answer::Deposit(self.deposit(command, now)?),
            Command::Refund(command) => Answer::Refund(self.refund(command)?),
            Command::Melt(command) => Answer::Melt(self.melt(command, now)?),
            Command::Reveal(command) => Answer::Reveal(self.reveal(command, now)?),
            Command::Recoup(command) => Answer::Recoup(self.recoup(command, now)?),
            Command::RecoupRefresh(command) => Answer::RecoupRefresh(self.recoup_refresh(command, now)?),
            Command::Aggregate(command) => Answer::Aggregate(self.aggregate(command, now)?),
            Command::TransfersDone(command) => {
                let mut changed = false;
                for wtid in &command.wtids {
                    self.transfers.get(wtid).ok_or(Refusal::TransferUnknown)?;
                }
                for wtid in &command.wtids {
                    changed |= self.mark(*wtid, |_| Sent::Done)?.changed;
                }
                Answer::TransfersDone(TransferMarked { changed })
            }
            Command::TransferFailed(command) => Answer::TransferFailed(
                self.mark(command.wtid, |sent| if sent == Sent::Done { sent } else { Sent::Failed })?,
            ),
            Command::TransferRetry(command) => Answer::TransferRetry(
                self.mark(command.wtid, |sent| if sent == Sent::Failed { Sent::Open } else { sent })?,
            ),
            Command::PurseCreate(command) => Answer::PurseCreate(self.create(command, now)?),
            Command::PurseDeposit(command) => Answer::PurseDeposit(self.deposit_into_purse(command, now)?),
            Command::PurseMerge(command) => Answer::PurseMerge(self.merge(command, now)?),
            Command::ReservePurse(command) => Answer::ReservePurse(self.ask(command, now)?),
            Command::PurseDelete(command) => Answer::PurseDelete(self.delete(command, now)?),
            Command::PurseExpire(command) => Answer::PurseExpire(self.expire(command, now)?),
            Command::ReserveOpen(command) => Answer::ReserveOpen(self.open(command, now)?),
            Command::RequestClose(command) => Answer::RequestClose(self.request_close(command, now)?),
            Command::RequireKyc(command) => Answer::RequireKyc(self.require(command)),
            Command::StartKyc(command) => Answer::StartKyc(self.start(command, now)),
            Command::FinishKyc(command) => Answer::FinishKyc(self.finish(command, now)?),
            Command::SubmitKyc(command) => Answer::SubmitKyc(self.submit(command, now)?),
            Command::DecideKyc(command) => Answer::DecideKyc(self.decide(command, now)?),
            Command::ClearKycAlert(_) => Answer::ClearKycAlert(KycAlertCleared),
            Command::ExecuteDrain(_)
            | Command::Management(_)
            | Command::Lease(_)
            | Command::SetAside(_)
            | Command::SettleAside(_)
            | Command::Collect(_)
            | Command::Archive(_) => {
                unreachable!("not generated")
            }
        })
    }

    fn mark(&mut self, wtid: Wtid, change: impl Fn(Sent) -> Sent) -> Step<TransferMarked> {
        let (_, sent) = self.transfers.get_mut(&wtid).ok_or(Refusal::TransferUnknown)?;
        let before = *sent;
        *sent = change(before);
        Ok(TransferMarked { changed: *sent != before })
    }

    fn terms(&self, denom: u32, index: usize) -> Step<DenomTerms> {
        Ok(*self
            .denoms
            .get(&denom)
            .ok_or(Refusal::DenominationUnknown { index, denom: DenomSerial(denom) })?)
    }

    fn remaining(&self, coin: &Coin) -> Units {
        let value = u(self.denoms[&coin.denom].value);
        let remaining = value + coin.log.iter().sum::<Units>();
        assert!((0..=value).contains(&remaining), "the model's own coin holds {remaining} of {value}");
        remaining
    }

    /// Checked in this order: past the end, before the start, revoked.
    fn window(
        &self,
        denom: u32,
        terms: &DenomTerms,
        end: Timestamp,
        now: Timestamp,
        index: usize,
    ) -> Step<()> {
        Self::in_time(denom, terms, end, now, index)?;
        if self.revoked.contains(&denom) {
            return Err(unusable(index, denom, DenomProblem::Revoked));
        }
        Ok(())
    }

    /// The same for a denomination that may be revoked.
    fn in_time(denom: u32, terms: &DenomTerms, end: Timestamp, now: Timestamp, index: usize) -> Step<()> {
        if now > end {
            return Err(unusable(index, denom, DenomProblem::Expired));
        }
        if now < terms.start {
            return Err(unusable(index, denom, DenomProblem::Future));
        }
        Ok(())
    }

    fn lock(&mut self, melt: bool, nonce: CsNonce, operation: HashCode, index: usize) -> Step<()> {
        let locked = self.nonces.entry((melt, nonce)).or_insert(operation);
        if *locked == operation { Ok(()) } else { Err(Refusal::NonceReuse { index }.into()) }
    }

    fn withdraw(&mut self, command: &Withdraw, now: Timestamp) -> Step<Withdrawn> {
        let known: Vec<bool> = command
            .planchets
            .iter()
            .map(|planchet| self.withdrawals.contains_key(&(command.reserve_pub, planchet.h_coin_ev)))
            .collect();
        for (index, planchet) in command.planchets.iter().enumerate() {
            if command.planchets[..index].iter().any(|other| other.h_coin_ev == planchet.h_coin_ev) {
                return Err(Refusal::PlanchetDuplicate { index }.into());
            }
        }
        let repeated = known.iter().all(|known| *known);
        if let (false, Some(index)) = (repeated, known.iter().position(|known| *known)) {
            return Err(Refusal::PlanchetsMixed { index }.into());
        }
        if !repeated {
            let mut price = 0;
            for (index, planchet) in command.planchets.iter().enumerate() {
                let terms = self.terms(planchet.denom.0, index)?;
                self.window(planchet.denom.0, &terms, terms.expire_withdraw, now, index)?;
                price += u(terms.value) + u(terms.fee_withdraw);
            }
            let reserve = self.reserves.get_mut(&command.reserve_pub).ok_or(Refusal::ReserveUnknown)?;
            if command.batch && reserve.origin.is_none() {
                return Err(Refusal::ReserveUnknown.into());
            }
            if reserve.balance() < price {
                return Err(Refused(
                    short_reserve(&command.reserve_pub, money(price)),
                    Some(Shortage::Reserve(command.reserve_pub, price)),
                ));
            }
            if let Some(origin) = reserve.origin
                && self.config.kyc.limits(KycOperation::Withdraw)
            {
                if command.origin.map(|named| named.h_payto()) != Some(origin) {
                    return Err(Refusal::OriginOther.into());
                }
                self.limit(KycOperation::Withdraw, origin, price, now)?;
            }
            let reserve = self.reserves.get_mut(&command.reserve_pub).unwrap();
            reserve.log.push(-price);
            reserve.gc = reserve.gc.max(now.saturating_add(self.config.legal_reserve_expiration));
            for (index, planchet) in command.planchets.iter().enumerate() {
                if let Some(nonce) = planchet.nonce {
                    self.lock(false, nonce, planchet.h_coin_ev, index)?;
                }
            }
            for planchet in &command.planchets {
                let ev_sig = planchet.ev_sig.clone().ok_or(Refusal::SignatureMissing)?;
                self.income += u(self.denoms[&planchet.denom.0].fee_withdraw);
                self.withdrawals
                    .insert((command.reserve_pub, planchet.h_coin_ev), (planchet.denom.0, ev_sig));
            }
        }
        let stored = |h_coin_ev| self.withdrawals[&(command.reserve_pub, h_coin_ev)].1.clone();
        let ev_sigs = command.planchets.iter().map(|planchet| stored(planchet.h_coin_ev)).collect();
        Ok(Withdrawn { ev_sigs, repeated })
    }

    fn history(&mut self, command: &ReserveHistory) -> Step<HistoryPaid> {
        let fee = u(command.fee);
        if fee == 0 {
            self.reserves.get(&command.reserve_pub).ok_or(Refusal::ReserveUnknown)?;
            return Ok(HistoryPaid { charged: false });
        }
        let key = (command.reserve_pub, command.request_time);
        if self.histories.contains_key(&key) {
            return Ok(HistoryPaid { charged: false });
        }
        let reserve = self.reserves.get_mut(&command.reserve_pub).ok_or(Refusal::HistoryUnaffordable)?;
        if reserve.balance() < fee {
            return Err(Refusal::HistoryUnaffordable.into());
        }
        reserve.log.push(-fee);
        self.histories.insert(key, fee);
        self.income += fee;
        Ok(HistoryPaid { charged: true })
    }

    fn credits(&mut self, command: &Credits, now: Timestamp) -> Credited {
        let (mut reserves, mut booked) = (Vec::new(), 0);
        for credit in &command.credits {
            let key = (credit.reserve_pub, credit.bank_row);
            if self.credits.contains_key(&key) {
                continue;
            }
            self.credits.insert(key, u(credit.amount));
            self.targets.entry(credit.h_payto).or_insert_with(|| credit.payto_uri.clone());
            let idle = credit.time.saturating_add(self.config.idle_reserve_expiration);
            self.fill(credit.reserve_pub, u(credit.amount), idle, now);
            self.reserves.get_mut(&credit.reserve_pub).unwrap().origin.get_or_insert(credit.h_payto);
            booked += 1;
            if !reserves.contains(&credit.reserve_pub) {
                reserves.push(credit.reserve_pub);
            }
        }
        Credited { reserves, booked, range: None }
    }

    fn fill(&mut self, reserve_pub: EddsaPublicKey, amount: Units, idle: Timestamp, now: Timestamp) {
        let gc = now.saturating_add(self.config.legal_reserve_expiration);
        let reserve = self.reserves.entry(reserve_pub).or_default();
        reserve.log.push(amount);
        reserve.expiration = reserve.expiration.max(idle);
        reserve.gc = reserve.gc.max(gc);
    }

    fn fee_at(&self, time: Timestamp) -> Step<(Units, Units)> {
        for (start, end, wire, closing) in &self.fees {
            if *start <= time && time < *end {
                return Ok((*wire, *closing));
            }
        }
        Err(Refusal::WireFeeMissing.into())
    }

    fn round(&self, amount: Units) -> Units {
        amount.max(0) / u(self.config.round_unit) * u(self.config.round_unit)
    }

    fn target(&self, h_payto: ShortHash, method: &str) -> Step<()> {
        if self.targets.contains_key(&h_payto) && method == self.method {
            Ok(())
        } else {
            Err(Refusal::TargetMismatch.into())
        }
    }

    fn close(&mut self, command: &CloseReserve, now: Timestamp) -> Step<Closed> {
        let (balance, fee_time) = match self.closing(command, now)? {
            Ok(due) => due,
            Err(nothing) => return Ok(nothing),
        };
        self.target(command.h_payto, &command.method)?;
        let (_, fee) = self.fee_at(fee_time)?;
        let fee = fee.min(balance);
        let paid = self.round(balance - fee);
        let own = Wtid::from_bytes(*command.reserve_pub.as_bytes());
        let wtid = if self.reserves[&command.reserve_pub].closings == 0 && !self.transfers.contains_key(&own)
        {
            own
        } else {
            command.wtid
        };
        if paid > 0 {
            if self.transfers.contains_key(&wtid) {
                return Err(Refusal::WtidTaken.into());
            }
            self.transfers.insert(wtid, (paid, Sent::Open));
        }
        self.income += balance - paid;
        let reserve = self.reserves.get_mut(&command.reserve_pub).unwrap();
        reserve.log.push(-balance);
        reserve.closings += 1;
        Ok(Closed::Closed { wtid, amount: money(balance), fee: money(fee), paid: money(paid) })
    }

    /// Records a new coin, or checks that a known coin is presented as it was before.
    fn know(&mut self, coin: &PresentedCoin, index: usize) -> Step<()> {
        let known = self.coins.entry(coin.coin_pub).or_insert_with(|| Coin {
            denom: coin.denom.0,
            h_age: coin.h_age,
            log: Vec::new(),
            zombie: false,
            recoups: Vec::new(),
            recoup_refreshes: Vec::new(),
        });
        if known.denom != coin.denom.0 {
            return Err(conflict(index, &coin.coin_pub, ConflictReason::OtherDenomination));
        }
        if known.h_age != coin.h_age {
            return Err(conflict(index, &coin.coin_pub, ConflictReason::OtherAgeCommitment));
        }
        Ok(())
    }

    fn spend(&mut self, coin_pub: EddsaPublicKey, amount: Units, index: usize) -> Step<()> {
        if self.remaining(&self.coins[&coin_pub]) < amount {
            let reason = ConflictReason::Insufficient { requested: money(amount) };
            return Err(Refused(
                conflicting(index, &coin_pub, reason),
                Some(Shortage::Coin(coin_pub, amount)),
            ));
        }
        self.coins.get_mut(&coin_pub).unwrap().log.push(-amount);
        Ok(())
    }

    fn deposit(&mut self, command: &Deposit, now: Timestamp) -> Step<Deposited> {
        if command.wire_deadline < command.refund_deadline || command.wire_deadline.is_never() {
            return Err(Refusal::DeadlinesImpossible.into());
        }
        let key = |coin_pub| DepositKey {
            coin_pub,
            merchant_pub: command.merchant_pub,
            h_contract_terms: command.h_contract_terms,
        };
        for (index, coin) in command.coins.iter().enumerate() {
            let same_coin =
                |other: &&batzen_exchange::rules::DepositCoin| other.coin.coin_pub == coin.coin.coin_pub;
            if command.coins.iter().find(same_coin).unwrap() != coin {
                return Err(Refusal::CoinDuplicate { index }.into());
            }
        }
        let mut first = None;
        for coin in &command.coins {
            if let Some(deposit) = self.deposits.get(&key(coin.coin.coin_pub)) {
                let earlier = |time: Timestamp| time.min(deposit.exchange_time);
                first = Some(first.map_or(deposit.exchange_time, earlier));
            }
        }
        let time = first.unwrap_or(now);
        let mut coins = Vec::new();
        for (index, coin) in command.coins.iter().enumerate() {
            let coin_pub = coin.coin.coin_pub;
            let amount = u(coin.contribution);
            let terms = self.terms(coin.coin.denom.0, index)?;
            self.know(&coin.coin, index)?;
            if let Some(old) = self.deposits.get(&key(coin_pub)) {
                let same = (old.sig, old.amount, old.h_payto, old.wallet_time, old.refund_deadline)
                    == (coin.coin_sig, amount, command.h_payto, command.wallet_time, command.refund_deadline);
                if !same {
                    return Err(conflict(index, &coin_pub, ConflictReason::OtherDeposit));
                }
                coins.push(DepositedCoin {
                    wire_deadline: old.wire_deadline,
                    amount_without_fee: money(amount - u(terms.fee_deposit)),
                    repeated: true,
                });
                continue;
            }
            self.window(coin.coin.denom.0, &terms, terms.expire_deposit, now, index)?;
            if amount > u(terms.value) {
                return Err(Refusal::ContributionAboveValue { index }.into());
            }
            if amount == 0 || amount < u(terms.fee_deposit) {
                return Err(Refusal::ContributionBelowFee { index }.into());
            }
            self.spend(coin_pub, amount, index)?;
            self.deposits.insert(
                key(coin_pub),
                Payment {
                    amount,
                    sig: coin.coin_sig,
                    h_payto: command.h_payto,
                    wallet_time: command.wallet_time,
                    exchange_time: time,
                    refund_deadline: command.refund_deadline,
                    wire_deadline: command.wire_deadline,
                    refunds: BTreeMap::new(),
                    wtid: None,
                },
            );
            coins.push(DepositedCoin {
                wire_deadline: command.wire_deadline,
                amount_without_fee: money(amount - u(terms.fee_deposit)),
                repeated: false,
            });
        }
        self.targets.entry(command.h_payto).or_insert_with(|| command.payto_uri.clone());
        Ok(Deposited { exchange_time: time, coins })
    }

    fn refund(&mut self, command: &Refund) -> Step<Refunded> {
        let coin_pub = command.key.coin_pub;
        let amount = u(command.amount);
        let denom = self.coins.get(&coin_pub).ok_or(Refusal::CoinUnknown)?.denom;
        let fee = u(self.denoms[&denom].fee_refund);
        let deposit = self.deposits.get_mut(&command.key.deposit()).ok_or(Refusal::DepositUnknown)?;
        if let Some(old) = deposit.refunds.get(&command.key.rtransaction_id) {
            if *old == amount {
                return Ok(Refunded { repeated: true });
            }
            return Err(conflict(0, &coin_pub, ConflictReason::RefundOtherAmount));
        }
        if deposit.wtid.is_some() {
            return Err(Refusal::DepositPaid.into());
        }
        if amount == 0 || amount < fee {
            return Err(Refusal::RefundBelowFee.into());
        }
        if deposit.refunded() + amount > deposit.amount {
            let reason = ConflictReason::RefundAboveDeposit { requested: command.amount };
            return Err(conflict(0, &coin_pub, reason));
        }
        deposit.refunds.insert(command.key.rtransaction_id, amount);
        self.coins.get_mut(&coin_pub).unwrap().log.push(amount - fee);
        self.income += fee;
        Ok(Refunded { repeated: false })
    }
}

fn unusable(index: usize, denom: u32, problem: DenomProblem) -> Refused {
    let denom = batzen_tables::exchange::DenomSerial(denom);
    Refusal::DenominationUnusable { index, denom, problem }.into()
}
