//! A simulated town: people with the real wallet core, shops, and an exchange with the real rules and
//! cryptography over a store in memory.
//!
//! Unlike in the fault simulation nothing fails, so that months of a town take seconds: no network, no disk,
//! no crashes, and the bank only credits reserves. Each request still happens at its own simulated time, in
//! the order of these times.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;

use batzen_crypto::{EddsaPublicKey, HashCode, WireSalt};
use batzen_exchange::rules::{Answer, Command, Credit, Credits};
use batzen_protocol::payto::h_payto;
use batzen_protocol::{Duration, Money, Timestamp};
use batzen_store::Store;
use batzen_store::memory::MemoryBackend;
use batzen_tables::exchange::AccountId;
use batzen_wallet::core::coin::CoinSource;
use batzen_wallet::core::discretion::Discretion;
use batzen_wallet::core::exchange::CoinWish;
use batzen_wallet::core::http::{HttpRequest, HttpResponse};
use batzen_wallet::core::payment::{self, PaymentRequest};
use batzen_wallet::core::refresh;
use batzen_wallet::core::state::OpKind;
use batzen_wallet::core::withdraw::{self, Origin, WithdrawStage};
use batzen_wallet::core::{self, Change, CoreError, Next, OpId, SeededEntropy, WalletState};

use super::people::{self, Act, DAY, Habit, Person, Purchase, Trade};
use super::view::{LogLine, View, masked};
use crate::customer::{merchant, merchant_account};
use crate::host::{Step, Stop};
use crate::keys::{EXCHANGE_ACCOUNT, EXCHANGE_URL, Keys, START_S, cents, currency, payto, start};
use crate::random::Random;
use crate::service::Service;
use crate::swarm::SECOND;

/// A planted leak, which the attack of its kind must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leak {
    /// Each contract's hash contains the hash of a coin's blinded planchet.
    Identifier,
    /// Everybody withdraws exactly the price before each purchase.
    ExactPrice,
}

/// The parameters of a town.
#[derive(Clone, Copy, Debug)]
pub struct TownOptions {
    /// Number of people, each with a wallet and a bank account.
    pub people: usize,
    /// Simulated days.
    pub days: u64,
    /// The options of all wallets.
    pub discretion: Discretion,
    /// Whether everybody withdraws ahead.
    pub plans_ahead: bool,
    /// A planted leak.
    pub leak: Option<Leak>,
}

/// The record of everybody's acts. The operator does not have this.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    /// For each coin, the reserve that its value was withdrawn from, through all refreshes.
    pub reserve_of_coin: BTreeMap<EddsaPublicKey, EddsaPublicKey>,
    /// The coins that came directly from a withdrawal.
    pub withdrawn: HashSet<EddsaPublicKey>,
    /// All secrets of all wallets that must never reach the exchange.
    pub secrets: BTreeSet<[u8; 32]>,
}

/// The price of using the wallets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    /// Purchases that were made.
    pub payments: u64,
    /// Purchases that had to wait for a withdrawal or for change.
    pub waited: u64,
    /// Purchases for which change was refreshed before its time.
    pub hastened: u64,
    /// Purchases that were given up.
    pub given_up: u64,
    /// Coins withdrawn.
    pub withdrawn: u64,
    /// Coins paid.
    pub deposited: u64,
    /// Coins melted.
    pub melted: u64,
    /// Coins that came from melts.
    pub fresh: u64,
    /// Withdrawals.
    pub withdrawals: u64,
    /// The money in all wallets at the end, in cents.
    pub idle_cents: u64,
}

impl Price {
    /// Adds another town's.
    pub fn add(&mut self, other: &Self) {
        self.payments += other.payments;
        self.waited += other.waited;
        self.hastened += other.hastened;
        self.given_up += other.given_up;
        self.withdrawn += other.withdrawn;
        self.deposited += other.deposited;
        self.melted += other.melted;
        self.fresh += other.fresh;
        self.withdrawals += other.withdrawals;
        self.idle_cents += other.idle_cents;
    }
}

/// A lived town.
pub struct Lived {
    /// The operator's view.
    pub view: View,
    /// The record of what happened.
    pub truth: Truth,
    /// Its cost.
    pub price: Price,
}

/// The exchange, without network.
struct Counter {
    store: Store,
    service: Service,
    log: Vec<LogLine>,
    bank_row: u64,
    /// The last planchet of each reserve, for [`Leak::Identifier`].
    planchets: BTreeMap<EddsaPublicKey, HashCode>,
}

impl Counter {
    fn new(seed: u64) -> Step<Self> {
        let store = Store::new(MemoryBackend::new());
        let keys = Keys::town();
        keys.install(&store).map_err(|error| Stop::wrong(error.to_string()))?;
        let (config, modules) = (keys.config.clone(), Arc::clone(&keys.modules));
        let service = Service::start(config, modules, store.clone(), start(), Random::new(seed))
            .map_err(|error| Stop::wrong(error.to_string()))?;
        Ok(Self { store, service, log: Vec::new(), bank_row: 0, planchets: BTreeMap::new() })
    }

    fn answer(&mut self, request: &HttpRequest, now: Timestamp) -> HttpResponse {
        self.service.set_clock(now);
        let response = self.service.answer_and(request, |command| {
            if let Command::Withdraw(withdraw) = command
                && let Some(last) = withdraw.planchets.last()
            {
                self.planchets.insert(withdraw.reserve_pub, last.h_coin_ev);
            }
        });
        let path = request.url.strip_prefix(EXCHANGE_URL).unwrap_or(&request.url);
        self.log.push(LogLine {
            time: now,
            request: format!("{} {}", request.method.name(), masked(path)),
            status: response.status,
            bytes: request.body.as_ref().map_or(0, Vec::len),
        });
        response
    }

    /// The bank's transfer into a reserve has arrived.
    fn credit(&mut self, reserve_pub: EddsaPublicKey, amount: Money, from: &str, now: Timestamp) -> Step {
        self.bank_row += 1;
        let credit = Credit {
            bank_row: self.bank_row,
            reserve_pub,
            amount,
            h_payto: h_payto(from),
            payto_uri: from.to_owned(),
            time: now,
        };
        let command = Command::Credits(Credits {
            account: AccountId::of_payto(&payto(EXCHANGE_ACCOUNT)),
            credits: vec![credit],
            cursor: self.bank_row,
            range: None,
        });
        self.service.set_clock(now);
        let verdicts = self.service.decide(&[command]);
        match verdicts.map_err(|error| Stop::wrong(error.to_string()))?.first() {
            Some(Ok(Answer::Credits(_))) => Ok(()),
            other => Err(Stop::wrong(format!("a credit was answered with {other:?}"))),
        }
    }
}

/// A person with a wallet.
struct Resident {
    person: Person,
    state: WalletState,
    entropy: SeededEntropy,
    /// Purchases that wait for coins, with the number of attempts.
    waiting: VecDeque<(Purchase, u32)>,
    /// When the wallet acts next, if that is planned.
    awake_at: Option<u64>,
}

enum Event {
    Act(usize, Act),
    Drive(usize),
    Credit(usize, OpId),
}

/// Number of attempts at a purchase before it is given up.
const ATTEMPTS: u32 = 4;

struct Town {
    options: TownOptions,
    counter: Counter,
    residents: Vec<Resident>,
    queue: BTreeMap<(u64, u64), Event>,
    next_event: u64,
    now: u64,
    random: Random,
    price: Price,
}

/// Lets a town live.
///
/// # Errors
/// When a wallet or the exchange fails, which is a bug.
pub fn live(seed: u64, options: TownOptions) -> Step<Lived> {
    let mut random = Random::new(seed);
    let shops: Vec<Trade> = people::shops(options.people);
    let mut residents = Vec::with_capacity(options.people);
    let mut town_events = Vec::new();
    for index in 0..options.people {
        let mut person = people::draw(&mut random, &shops, options.days);
        if options.plans_ahead && !matches!(person.habit, Habit::Ahead { .. }) {
            person.habit = Habit::Ahead { sum: 10_000 };
        }
        town_events.extend(person.acts.drain(..).map(|(at, act)| (at, index, act)));
        let mut state = WalletState::default();
        let mut exchange = Keys::town().exchange.clone();
        exchange.discretion = options.discretion;
        state.apply(Change::Exchange(Box::new(exchange)));
        let entropy = SeededEntropy::new(random.draw());
        residents.push(Resident { person, state, entropy, waiting: VecDeque::new(), awake_at: None });
    }
    let counter = Counter::new(random.draw())?;
    let mut town = Town {
        options,
        counter,
        residents,
        queue: BTreeMap::new(),
        next_event: 0,
        now: 0,
        random,
        price: Price::default(),
    };
    for (at, index, act) in town_events {
        town.push(START_S * SECOND + at, Event::Act(index, act));
    }
    // Two more days, so that operations end.
    let end = START_S * SECOND + (options.days + 2) * DAY;
    while let Some(((at, _), event)) = town.queue.pop_first() {
        if at > end {
            break;
        }
        town.now = at;
        town.happen(event)?;
    }
    Ok(town.finish())
}

impl Town {
    fn push(&mut self, at: u64, event: Event) {
        self.next_event += 1;
        self.queue.insert((at, self.next_event), event);
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    fn happen(&mut self, event: Event) -> Step {
        match event {
            Event::Act(index, Act::Buy(purchase)) => {
                if self.options.leak == Some(Leak::ExactPrice) {
                    let needed = cents(purchase.cents);
                    self.withdraw(index, needed)?;
                    self.residents[index].waiting.push_back((purchase, 1));
                } else {
                    self.buy(index, purchase, 1)?;
                }
                self.drive_soon(index);
                Ok(())
            }
            Event::Act(index, Act::Look) => self.look(index),
            Event::Drive(index) => {
                self.residents[index].awake_at = None;
                self.drive(index)
            }
            Event::Credit(index, id) => self.credit(index, id),
        }
    }

    /// The wallet sends its next requests after the time that a request takes.
    fn drive_soon(&mut self, index: usize) {
        let at = self.now + self.random.between(60_000, 400_000);
        self.drive_at(index, at);
    }

    fn drive_at(&mut self, index: usize, at: u64) {
        if self.residents[index].awake_at.is_none_or(|planned| at < planned) {
            self.residents[index].awake_at = Some(at);
            self.push(at, Event::Drive(index));
        }
    }

    fn wrong(index: usize, error: &CoreError) -> Stop {
        Stop::wrong(format!("the wallet of person {index}: {error}"))
    }

    /// Sends one request of each open operation. Then the purchases that wait are tried again.
    fn drive(&mut self, index: usize) -> Step {
        let now = self.time();
        let resident = &mut self.residents[index];
        let due = core::plan(&resident.state, now, &mut resident.entropy);
        for change in due.map_err(|error| Self::wrong(index, &error))? {
            resident.state.apply(change);
        }
        let open: Vec<OpId> = resident.state.open_operations().map(|operation| operation.id).collect();
        let mut goes_on = false;
        for id in open {
            let resident = &mut self.residents[index];
            let next = core::next(&resident.state, id, 0).map_err(|error| Self::wrong(index, &error))?;
            let Next::Request(request) = next else { continue };
            let response = self.counter.answer(&request, now);
            let outcome = core::receive(&resident.state, id, &request, &response, now, &mut resident.entropy)
                .map_err(|error| Self::wrong(index, &error))?;
            if let Some(disputed) = outcome.disputed {
                return Err(Stop::wrong(format!("person {index} disputes an answer: {disputed:?}")));
            }
            for change in outcome.changes {
                resident.state.apply(change);
            }
            goes_on |= outcome.waiting.is_none();
        }
        if goes_on {
            self.drive_soon(index);
        } else if let Some(due) = refresh::next_due(&self.residents[index].state) {
            self.drive_at(index, due.as_micros().max(self.now + SECOND));
        }
        if self.residents[index].state.open_operations().next().is_none()
            && let Some((purchase, attempt)) = self.residents[index].waiting.pop_front()
        {
            self.buy(index, purchase, attempt + 1)?;
            self.drive_soon(index);
        }
        Ok(())
    }

    fn buy(&mut self, index: usize, purchase: Purchase, attempt: u32) -> Step {
        let now = self.time();
        let in_days = |n| now.saturating_add(Duration::from_days(n));
        let mut h_contract_terms = HashCode::from_bytes(self.random.bytes());
        if self.options.leak == Some(Leak::Identifier) {
            h_contract_terms = self.planted(index).unwrap_or(h_contract_terms);
        }
        let request = PaymentRequest {
            exchange: Some(EXCHANGE_URL.to_owned()),
            amount: cents(purchase.cents).of(currency()),
            max_fee: cents(1_000),
            merchant_pub: merchant(purchase.shop).public_key(),
            merchant_payto: payto(&merchant_account(purchase.shop)),
            wire_salt: WireSalt::from_bytes(self.random.bytes()),
            h_contract_terms,
            timestamp: None,
            refund_deadline: in_days(1),
            wire_transfer_deadline: in_days(2),
            summary: String::new(),
        };
        let resident = &mut self.residents[index];
        match payment::start(&resident.state, &request, now, &mut resident.entropy) {
            Ok((_, changes)) => {
                for change in changes {
                    resident.state.apply(change);
                }
                self.price.payments += 1;
                self.price.waited += u64::from(attempt > 1);
                Ok(())
            }
            Err(CoreError::InsufficientFunds { available, needed }) => {
                if attempt >= ATTEMPTS {
                    self.price.given_up += 1;
                    return Ok(());
                }
                let is_busy = resident.state.open_operations().next().is_some();
                resident.waiting.push_back((purchase, attempt));
                let missing = needed.money.checked_sub(available.money).unwrap_or(Money::ZERO);
                let waiting = refresh::waiting_change(&resident.state, EXCHANGE_URL);
                if waiting.map_err(|error| Self::wrong(index, &error))? >= missing && !missing.is_zero() {
                    for change in refresh::hasten(&resident.state, EXCHANGE_URL, now) {
                        resident.state.apply(change);
                    }
                    self.price.hastened += 1;
                } else if !is_busy {
                    self.top_up(index, missing)?;
                }
                Ok(())
            }
            Err(error) => Err(Self::wrong(index, &error)),
        }
    }

    /// The hash of the newest planchet that this wallet had signed, as a contract's hash: a planted leak.
    fn planted(&self, index: usize) -> Option<HashCode> {
        let operations = self.residents[index].state.operations.values().rev();
        let mut reserves = operations.filter_map(|operation| match &operation.kind {
            OpKind::Withdrawal(record) if record.stage == WithdrawStage::Done => Some(record.reserve_pub),
            _ => None,
        });
        self.counter.planchets.get(&reserves.next()?).copied()
    }

    /// Withdraws because a purchase needs it, by the person's habit.
    fn top_up(&mut self, index: usize, missing: Money) -> Step {
        let round = |to: u64| {
            let unit = cents(to).units();
            Money::from_units(missing.units().div_ceil(unit) * unit).unwrap_or(missing)
        };
        let sum = match self.residents[index].person.habit {
            Habit::Ahead { sum } => round(sum),
            Habit::Round => round(1_000),
            Habit::Exact => missing,
        };
        self.withdraw(index, sum)
    }

    /// A person who plans ahead withdraws when the wallet is nearly empty.
    fn look(&mut self, index: usize) -> Step {
        let resident = &self.residents[index];
        let Habit::Ahead { sum } = resident.person.habit else { return Ok(()) };
        let has = Money::checked_sum(resident.state.coins.values().map(|coin| coin.remaining));
        let is_idle = resident.state.open_operations().next().is_none();
        if is_idle && has.is_ok_and(|has| has < cents(sum / 4)) {
            self.withdraw(index, cents(sum))?;
        }
        Ok(())
    }

    fn withdraw(&mut self, index: usize, sum: Money) -> Step {
        let now = self.time();
        let sum = self.options.discretion.sum_for(sum);
        let resident = &mut self.residents[index];
        let origin = Origin::Manual { payto: payto(EXCHANGE_ACCOUNT) };
        let (id, changes) = withdraw::start(
            &resident.state,
            EXCHANGE_URL,
            sum.of(currency()),
            origin,
            CoinWish::default(),
            now,
            &mut resident.entropy,
        )
        .map_err(|error| Self::wrong(index, &error))?;
        for change in changes {
            resident.state.apply(change);
        }
        self.price.withdrawals += 1;
        // The bank's instant transfer, with the time in which the owner confirms it.
        let at = self.now + self.random.between(4, 45) * SECOND;
        self.push(at, Event::Credit(index, id));
        Ok(())
    }

    fn credit(&mut self, index: usize, id: OpId) -> Step {
        let operation = self.residents[index].state.operation(id);
        let operation = operation.map_err(|error| Self::wrong(index, &error))?;
        let OpKind::Withdrawal(record) = &operation.kind else {
            return Err(Stop::wrong("a credit is not for a withdrawal"));
        };
        let (reserve_pub, amount) = (record.reserve_pub, record.amount);
        let now = self.time();
        self.counter.credit(reserve_pub, amount, &payto(&format!("customer-{index}")), now)?;
        self.drive_soon(index);
        Ok(())
    }

    fn finish(self) -> Lived {
        let mut truth = Truth::default();
        let mut price = self.price;
        for resident in &self.residents {
            let coins = &resident.state.coins;
            for coin in coins.values() {
                let mut origin = coin.source;
                // A coin of a wallet comes from coins of the same wallet.
                while let CoinSource::Refresh { old_coin_pub, .. } = origin {
                    let Some(old) = coins.get(&old_coin_pub) else { break };
                    origin = old.source;
                }
                if let CoinSource::Withdrawal { reserve_pub, .. } = origin {
                    truth.reserve_of_coin.insert(coin.coin_pub, reserve_pub);
                }
                match coin.source {
                    CoinSource::Refresh { .. } => price.fresh += 1,
                    _ => {
                        price.withdrawn += 1;
                        truth.withdrawn.insert(coin.coin_pub);
                    }
                }
                price.idle_cents += u64::try_from(coin.remaining.units() / 1_000_000).unwrap_or_default();
                truth.secrets.insert(*coin.coin_priv.as_bytes());
                truth.secrets.insert(*coin.blinding.as_bytes());
            }
            for operation in resident.state.operations.values() {
                match &operation.kind {
                    OpKind::Withdrawal(record) => {
                        truth.secrets.insert(*record.reserve_priv.as_bytes());
                        truth.secrets.insert(*record.seed.as_bytes());
                    }
                    OpKind::Payment(record) => price.deposited += record.coins.len() as u64,
                    OpKind::Refresh(_) => price.melted += 1,
                    _ => {}
                }
            }
        }
        Lived { view: View { store: self.counter.store, log: self.counter.log }, truth, price }
    }
}
