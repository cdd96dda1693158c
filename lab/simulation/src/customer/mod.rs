//! A customer: the real wallet core with its records, a bank page, and a driver that can be killed at any
//! step.
//!
//! The records are durable exactly when a step is stored, as in the wallet's file; everything else is lost
//! with the process.

mod identity;
mod people;
mod shopping;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode, WireSalt};
use batzen_protocol::signatures::{MerchantRefund, SignedMessage};
use batzen_protocol::{Duration, ErrorCode, Money, Timestamp};
use batzen_wallet::core::coin::{Coin, CoinStatus};
use batzen_wallet::core::exchange::{CipherChoice, ExchangeUpdate};
use batzen_wallet::core::http::{Context as HttpContext, HttpRequest, HttpResponse};
use batzen_wallet::core::payment::{self, DepositAmount, PaymentRequest, PaymentStage};
use batzen_wallet::core::refund::{self, RefundPermission};
use batzen_wallet::core::state::OpKind;
use batzen_wallet::core::withdraw::{self, Origin};
use batzen_wallet::core::{self, Change, CoreError, Next, OpId, SeededEntropy, WalletState};

use self::people::Lookup;
use self::shopping::Shopping;
use crate::bank::{OperationOrder, PayOrder};
use crate::host::{Step, Stop};
use crate::keys::{BANK_URL, EXCHANGE_ACCOUNT, EXCHANGE_URL, Keys, cents, currency, payto};
use crate::message::{Body, Context, Event, Message, ProcessId, Timer};
use crate::shop::SHOP_URL;
use crate::swarm::{Bug, Revocation, SECOND};

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Operation(OpId),
    /// An order at the bank, by its index.
    Order(usize),
    /// A part of an update of what the exchange publishes.
    Update,
    /// A look at a URI of the board.
    Lookup,
    /// A purchase that has not begun yet.
    Shopping,
    /// The approval of a refund of this purchase.
    Approval(OpId),
    /// A form of the exchange.
    Form,
    /// A double spend, whose outcome does not matter.
    Theft,
}

/// An order to the bank, which the customer's page keeps until it is answered.
#[derive(Clone, Debug)]
pub struct Order {
    /// The request to send.
    pub request: HttpRequest,
    /// The amount, if it moves money.
    pub amount: Money,
    /// Whether the bank has confirmed it.
    pub is_done: bool,
    /// Another order that must come first.
    after: Option<usize>,
}

/// A customer.
pub struct Customer {
    /// Its index.
    pub index: usize,
    /// Whether it tries to spend coins twice.
    pub is_thief: bool,
    /// The wallet's records.
    pub state: WalletState,
    /// The orders of its page.
    pub orders: Vec<Order>,
    /// The reserves for which it has ordered transfers.
    ordered: BTreeSet<EddsaPublicKey>,
    /// All successful requests and their answers.
    pub acknowledged: Vec<(HttpRequest, HttpResponse)>,
    entropy: SeededEntropy,
    incarnation: u32,
    is_up: bool,
    clock_offset: i64,
    questions: BTreeMap<u64, (Purpose, HttpRequest)>,
    resting: BTreeMap<OpId, u64>,
    /// The update of what the exchange publishes, while one is under way.
    update: Option<ExchangeUpdate>,
    /// The look at a URI of the board, while one is under way.
    lookup: Option<Lookup>,
    /// The purchase that has not begun yet.
    shopping: Option<Shopping>,
    /// The number of its orders at the shop.
    bought: u64,
    /// The records before the last step, for [`Bug::SendsBeforeStoring`].
    stored: Option<WalletState>,
    next_refund: u64,
    /// The addresses of forms whose entries the exchange has confirmed.
    forms: BTreeSet<String>,
}

/// Delay of a thief's clock, in microseconds.
const THIEF_CLOCK: i64 = 3 * 3_600_000_000;

/// The key of a merchant.
#[must_use]
pub fn merchant(number: u64) -> EddsaPrivateKey {
    let mut bytes = [3; 32];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    EddsaPrivateKey::from_bytes(bytes)
}

/// The name of a merchant's account.
#[must_use]
pub fn merchant_account(number: u64) -> String {
    format!("merchant-{number}")
}

fn seconds(micros: u64) -> Timestamp {
    Timestamp::from_secs(micros / SECOND)
}

impl Customer {
    /// A customer with an empty wallet that has added the exchange.
    #[must_use]
    pub fn new(index: usize, is_thief: bool, seed: u64) -> Self {
        let mut state = WalletState::default();
        state.apply(Change::Exchange(Box::new(Keys::get().exchange.clone())));
        Self {
            index,
            is_thief,
            state,
            orders: Vec::new(),
            ordered: BTreeSet::new(),
            acknowledged: Vec::new(),
            entropy: SeededEntropy::new(seed),
            incarnation: 1,
            is_up: true,
            clock_offset: 0,
            questions: BTreeMap::new(),
            resting: BTreeMap::new(),
            update: None,
            lookup: None,
            shopping: None,
            bought: 0,
            stored: None,
            next_refund: 1,
            forms: BTreeSet::new(),
        }
    }

    /// The name of its account.
    #[must_use]
    pub fn account(&self) -> String {
        format!("customer-{}", self.index)
    }

    /// Its place in the network.
    #[must_use]
    pub const fn place(&self) -> ProcessId {
        ProcessId::Customer(self.index)
    }

    /// Returns the number of its starts.
    #[must_use]
    pub const fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Steps its clock.
    pub fn step_clock(&mut self, offset: i64) {
        self.clock_offset = offset;
    }

    /// Returns whether nothing is left to do: no operation and no order.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state.open_operations().next().is_none() && self.orders.iter().all(|order| order.is_done)
    }

    /// A thief's clock is three hours slow, so that denominations that have just expired seem valid to the
    /// thief's wallet.
    fn now(&self, context: &Context) -> Timestamp {
        let offset = self.clock_offset - if self.is_thief { THIEF_CLOCK } else { 0 };
        Timestamp::from_micros(context.now.saturating_add_signed(offset))
    }

    /// Starts or restarts.
    pub fn start(&mut self, context: &mut Context) {
        self.is_up = true;
        self.incarnation += 1;
        context.wake(self.place(), self.incarnation, SECOND, Timer::Drive);
        let gap = context.random.gap(context.swarm.act_gap);
        context.wake(self.place(), self.incarnation, gap, Timer::Act);
    }

    fn die(&mut self, context: &mut Context) {
        self.is_up = false;
        self.questions.clear();
        self.resting.clear();
        self.update = None;
        self.lookup = None;
        self.shopping = None;
        if let Some(stored) = self.stored.take() {
            self.state = stored;
        }
        context.say(&format!("{:?} dies", self.place()));
        let pause = context.random.between(1, 3_600) * SECOND;
        context.caused.push((pause, Event::Restart(self.place())));
    }

    /// Stores a step. False if the wallet died before or after it.
    fn store(&mut self, context: &mut Context, changes: Vec<Change>) -> bool {
        let dies = context.is_active && context.random.chance(context.swarm.customer_crash);
        let before = dies && context.random.chance(500);
        if before {
            context.marks.meet("crash.customer_before_commit");
            self.die(context);
            return false;
        }
        if context.has(Bug::SendsBeforeStoring) {
            self.stored = Some(self.state.clone());
        }
        for change in changes {
            self.state.apply(change);
        }
        if dies {
            context.marks.meet("crash.customer_after_commit");
            self.die(context);
            return false;
        }
        true
    }

    fn ask(&mut self, context: &mut Context, to: ProcessId, request: HttpRequest, purpose: Purpose) {
        let call = context.call();
        self.questions.insert(call, (purpose, request.clone()));
        context.send(Message { from: self.place(), to, call, body: Body::Ask(Rc::new(request)) });
        let patience = context.random.between(20, 120) * SECOND;
        context.wake(self.place(), self.incarnation, patience, Timer::GiveUp(call));
    }

    /// A timer fires.
    ///
    /// # Errors
    /// If a check fails.
    pub fn timer(&mut self, context: &mut Context, timer: Timer) -> Step {
        if !self.is_up {
            return Ok(());
        }
        match timer {
            Timer::Act => {
                if context.is_active {
                    let gap = context.random.gap(context.swarm.act_gap);
                    context.wake(self.place(), self.incarnation, gap, Timer::Act);
                    self.act(context)?;
                }
                Ok(())
            }
            Timer::GiveUp(call) => {
                let pause = context.random.between(1, 60) * SECOND;
                match self.questions.remove(&call) {
                    Some((Purpose::Operation(id), _)) => self.rest(context, id, pause),
                    Some((Purpose::Order(_), _)) => {
                        context.wake(self.place(), self.incarnation, pause, Timer::Rested);
                    }
                    Some((Purpose::Update, _)) => self.update = None,
                    Some((Purpose::Lookup, _)) => self.lookup = None,
                    Some((Purpose::Shopping, _)) => self.shopping = None,
                    Some((Purpose::Form | Purpose::Theft | Purpose::Approval(_), _)) | None => {}
                }
                Ok(())
            }
            Timer::Rested => self.go_on(context),
            Timer::Drive => {
                let gap = if self.is_idle() { 3_600 } else { 60 };
                context.wake(self.place(), self.incarnation, gap * SECOND, Timer::Drive);
                self.look_for_revocation(context);
                self.go_on(context)
            }
            other => Err(Stop::wrong(format!("a customer has no timer {other:?}"))),
        }
    }

    fn rest(&mut self, context: &mut Context, id: OpId, pause: u64) {
        self.resting.insert(id, context.now + pause);
        context.wake(self.place(), self.incarnation, pause, Timer::Rested);
    }

    /// Sends all requests that are not under way.
    fn go_on(&mut self, context: &mut Context) -> Step {
        if !self.is_up {
            return Ok(());
        }
        let due = core::plan(&self.state, self.now(context), &mut self.entropy);
        let due = due.map_err(|error| self.wrong(&error))?;
        if !due.is_empty() && !self.store(context, due) {
            return Ok(());
        }
        self.order_transfers();
        self.identify(context);
        for index in 0..self.orders.len() {
            let order = &self.orders[index];
            let is_asked = self.questions.values().any(|(purpose, _)| *purpose == Purpose::Order(index));
            let is_ready = order.after.is_none_or(|after| self.orders[after].is_done);
            if !order.is_done && !is_asked && is_ready {
                let request = order.request.clone();
                self.ask(context, ProcessId::Bank, request, Purpose::Order(index));
            }
        }
        let open: Vec<OpId> = self.state.open_operations().map(|operation| operation.id).collect();
        for id in open {
            let is_asked = self.questions.values().any(|(purpose, _)| *purpose == Purpose::Operation(id));
            let rests = self.resting.get(&id).is_some_and(|until| context.now < *until);
            if is_asked || rests {
                continue;
            }
            match core::next(&self.state, id, 0).map_err(|error| self.wrong(&error))? {
                Next::Done => {}
                Next::Request(request) => {
                    let is_for_shop = request.url.starts_with(SHOP_URL);
                    let to = if is_for_shop { ProcessId::Shop } else { ProcessId::Exchange };
                    self.ask(context, to, *request, Purpose::Operation(id));
                }
            }
        }
        Ok(())
    }

    fn wrong(&self, error: &CoreError) -> Stop {
        Stop::wrong(format!("{:?}: {error}", self.place()))
    }

    /// A message arrives.
    ///
    /// # Errors
    /// If a check fails.
    pub fn arrive(&mut self, context: &mut Context, message: &Message) -> Step {
        if !self.is_up {
            context.marks.meet("message.to_dead_process");
            return Ok(());
        }
        let Body::Reply(response) = &message.body else { return Ok(()) };
        let Some((purpose, request)) = self.questions.remove(&message.call) else { return Ok(()) };
        // Purses are paid until they expire, histories grow, and the bank's operations and first messages of Clause Schnorr promise nothing.
        let grows = ["/create", "/deposit", "/purse"].iter().any(|end| request.url.ends_with(end));
        let promises_nothing = grows && (request.url.contains("/purses/") || request.url.ends_with("/purse"))
            || request.url.contains("csr-")
            || request.url.ends_with("operation")
            || request.url.ends_with("/status")
            || request.url.contains("kyc-form")
            // More may be approved, or the time of refunds may be over.
            || request.url.starts_with(SHOP_URL) && request.url.ends_with("/refund")
            // What is not refunded yet may be refunded later.
            || request.url.ends_with("/abort") && response.body.windows(9).any(|part| part == b"\"failure\"");
        if response.status == 200 && request.body.is_some() && !promises_nothing {
            self.acknowledged.push((request.clone(), (**response).clone()));
        }
        match purpose {
            Purpose::Theft => Ok(()),
            Purpose::Update => self.learn(context, response),
            Purpose::Lookup => self.look_further(context, response),
            Purpose::Shopping => self.shop_on(context, response),
            Purpose::Approval(id) => self.approved(context, id, response),
            Purpose::Form => {
                if response.status == 200 {
                    self.filled_in(context, &request);
                }
                Ok(())
            }
            Purpose::Order(index) => {
                // A permanent refusal counts as done if no money moves.
                let is_done = response.status == 200
                    || (400..500).contains(&response.status) && self.orders[index].amount.is_zero();
                if response.status == 200 && !self.orders[index].is_done {
                    self.name_operation(index, response);
                }
                self.orders[index].is_done |= is_done;
                if !is_done && (400..500).contains(&response.status) {
                    return Err(Stop::wrong(format!(
                        "{:?}: the bank refuses an order: {} {}",
                        self.place(),
                        response.status,
                        response.code()
                    )));
                }
                self.go_on(context)
            }
            Purpose::Operation(id) => self.receive(context, id, &request, response),
        }
    }

    /// Asks for what the exchange publishes, every hour until a revocation of this run is known.
    fn look_for_revocation(&mut self, context: &mut Context) {
        let Some(exchange) = self.state.exchanges.get(EXCHANGE_URL) else { return };
        let is_known = |revocation: Revocation| {
            exchange.denoms.get(&Keys::get().denoms[revocation.denom].h).is_some_and(|denom| denom.revoked)
        };
        let expects_one = context.swarm.revocation.is_some_and(|revocation| !is_known(revocation));
        if !expects_one || !exchange.is_stale(self.now(context)) || self.update.is_some() {
            return;
        }
        self.update = Some(ExchangeUpdate::new(EXCHANGE_URL.to_owned(), Some(exchange.clone())));
        self.ask_update(context);
    }

    fn ask_update(&mut self, context: &mut Context) {
        if let Some(update) = &self.update {
            let request = update.next();
            self.ask(context, ProcessId::Exchange, request, Purpose::Update);
        }
    }

    /// Takes in a part of what the exchange publishes.
    fn learn(&mut self, context: &mut Context, response: &HttpResponse) -> Step {
        let now = self.now(context);
        let Some(mut update) = self.update.take().filter(|_| !response.is_transient()) else {
            return Ok(());
        };
        let Some(mut changes) = update.receive(response, now).map_err(|error| self.wrong(&error))? else {
            self.update = Some(update);
            self.ask_update(context);
            return Ok(());
        };
        for change in &mut changes {
            if let (Change::Exchange(fetched), Some(known)) = (change, self.state.exchanges.get(EXCHANGE_URL))
            {
                fetched.keep(known);
            }
        }
        if self.store(context, changes) { self.go_on(context) } else { Ok(()) }
    }

    /// The bank has created an operation: sets its id in dependent orders.
    fn name_operation(&mut self, index: usize, response: &HttpResponse) {
        let Ok(wopid) = serde_json::from_slice::<[u8; 32]>(&response.body) else { return };
        for order in self.orders.iter_mut().filter(|order| order.after == Some(index)) {
            let body = order.request.body.take().unwrap_or_default();
            let mut selection: OperationOrder = serde_json::from_slice(&body).expect("an order");
            selection.wopid = wopid;
            order.request.body = serde_json::to_vec(&selection).ok();
        }
    }

    fn receive(
        &mut self,
        context: &mut Context,
        id: OpId,
        request: &HttpRequest,
        response: &HttpResponse,
    ) -> Step {
        if response.is_transient() {
            let pause = context.random.between(1, 60) * SECOND;
            self.rest(context, id, pause);
            return Ok(());
        }
        if response.status == 410 && response.code() == ErrorCode::EXCHANGE_GENERIC_DENOMINATION_EXPIRED {
            context.marks.meet("withdraw.denomination_expired");
        }
        let now = self.now(context);
        match core::receive(&self.state, id, request, response, now, &mut self.entropy) {
            Ok(mut outcome) => {
                if let Some(disputed) = outcome.disputed {
                    // The exchange is honest here. But a wallet with a slow clock cannot see that a
                    // denomination has expired, and a thief gets conflicts, which have no proof in this
                    // simulation. Both retry later.
                    if response.status != 410 && !self.is_thief {
                        return Err(Stop::wrong(format!(
                            "{:?} disputes an answer: {disputed:?}",
                            self.place()
                        )));
                    }
                    if self.store(context, outcome.changes) {
                        let hours = if self.is_thief { 12 } else { 1 };
                        self.rest(context, id, hours * 3_600 * SECOND);
                    }
                    return Ok(());
                }
                if context.has(Bug::CountsRefundTwice) && response.status == 200 {
                    self.credit_again(id, &mut outcome.changes);
                }
                let is_waiting = outcome.waiting.is_some();
                if !self.store(context, outcome.changes) {
                    return Ok(());
                }
                if is_waiting {
                    let kind = self.state.operation(id).map(|operation| operation.kind.clone());
                    // Another person may take hours.
                    let is_personal = matches!(kind, Ok(OpKind::PursePayment(_) | OpKind::PurseIncome(_)));
                    let factor = if is_personal { 10 } else { 1 };
                    let pause = context.random.between(20, 240) * factor * SECOND;
                    self.rest(context, id, pause);
                    return Ok(());
                }
                self.go_on(context)
            }
            Err(error) => {
                context.say(&format!("{:?} makes no progress with {id}: {error}", self.place()));
                if !self.is_thief && response.status == 409 {
                    // Without double spending, nobody else can have taken the money.
                    return Err(self.wrong(&error));
                }
                let text = error.to_string();
                let noted = core::record_error(&self.state, id, &text).map_err(|error| self.wrong(&error))?;
                if self.store(context, noted) {
                    // A thief's operations never finish, so it stops retrying.
                    let hours = if self.is_thief { 12 } else { 1 };
                    let pause = context.random.between(300, 1_200) * hours * SECOND;
                    self.rest(context, id, pause);
                }
                Ok(())
            }
        }
    }

    /// A planted bug: a refund is credited twice.
    fn credit_again(&self, id: OpId, changes: &mut [Change]) {
        let is_refund = self.state.operation(id).is_ok_and(|op| matches!(op.kind, OpKind::Refund(_)));
        for change in changes.iter_mut().filter(|_| is_refund) {
            let Change::Coin(coin) = change else { continue };
            let Some(before) = self.state.coins.get(&coin.coin_pub) else { continue };
            if let Ok(gain) = coin.remaining.checked_sub(before.remaining) {
                coin.remaining = coin.remaining.checked_add(gain).unwrap_or(coin.remaining);
            }
        }
    }

    // --- What a customer does
    // -----------------------------------------------------------------------------------------

    fn act(&mut self, context: &mut Context) -> Step {
        if context.random.chance(500) {
            self.look_at_board(context);
        }
        self.bring_back(context);
        let has_coins = self.coins().next().is_some();
        match context.random.below(100) {
            _ if !has_coins => self.withdraw(context),
            0..15 => self.withdraw(context),
            30..70 if self.is_thief => self.steal(context),
            15..45 => self.pay(context),
            45..60 => {
                self.buy(context);
                Ok(())
            }
            70..90 if self.is_thief => {
                self.buy(context);
                Ok(())
            }
            60..66 => self.deposit(context),
            66..80 => self.take_refund(context),
            80..90 => self.deal(context),
            90..94 => {
                self.abandon(context);
                Ok(())
            }
            _ => self.pay(context),
        }?;
        self.go_on(context)
    }

    fn coins(&self) -> impl Iterator<Item = &Coin> {
        self.state.coins.values().filter(|coin| coin.status == CoinStatus::Fresh && !coin.remaining.is_zero())
    }

    /// Starts an operation, unless the core refuses it.
    fn begin<T>(
        &mut self,
        context: &mut Context,
        begun: Result<(T, Vec<Change>), CoreError>,
    ) -> Step<Option<T>> {
        match begun {
            Ok((begun, changes)) => Ok(self.store(context, changes).then_some(begun)),
            Err(error @ (CoreError::Inconsistent(_) | CoreError::Amount(_))) => Err(self.wrong(&error)),
            Err(_) => Ok(None),
        }
    }

    fn withdraw(&mut self, context: &mut Context) -> Step {
        let amount = cents(context.random.between(60, 900));
        let cipher = *context.random.pick(&[
            CipherChoice::Any,
            CipherChoice::Any,
            CipherChoice::Rsa,
            CipherChoice::Cs,
        ]);
        let origin = Origin::Manual { payto: payto(EXCHANGE_ACCOUNT) };
        let begun = withdraw::start(
            &self.state,
            EXCHANGE_URL,
            amount.of(currency()),
            origin,
            cipher.into(),
            self.now(context),
            &mut self.entropy,
        );
        self.begin(context, begun).map(|_| ())
    }

    /// Orders the transfers that the wallet is waiting for at the bank.
    fn order_transfers(&mut self) {
        let account = self.account();
        let awaited: Vec<(EddsaPublicKey, Money)> = self
            .state
            .open_operations()
            .filter_map(|operation| match &operation.kind {
                OpKind::Withdrawal(record) if matches!(record.origin, Origin::Manual { .. }) => {
                    Some((record.reserve_pub, record.amount))
                }
                _ => None,
            })
            .collect();
        for (reserve_pub, amount) in awaited {
            if !self.ordered.insert(reserve_pub) {
                continue;
            }
            let order = PayOrder {
                id: *reserve_pub.as_bytes().first_chunk().expect("32 bytes"),
                account: account.clone(),
                units: u64::try_from(amount.units()).expect("a small amount"),
                reserve_pub,
            };
            let request = HttpRequest::post(HttpContext::Bank, format!("{BANK_URL}pay"), &order);
            self.orders.push(Order { request, amount, is_done: false, after: None });
        }
    }

    fn contract(&self, context: &mut Context) -> PaymentRequest {
        let number = context.random.below(context.swarm.merchants);
        let refund_in = context.random.between(0, 3) * 1_200;
        let wire_in = refund_in + context.random.between(0, 4) * 1_800;
        let now = self.now(context);
        let after = |s| seconds(now.saturating_add(Duration::from_secs(s)).as_micros());
        let amount = match context.random.below(4) {
            0 => context.random.between(1, 12),
            1 => context.random.between(10, 100),
            _ => context.random.between(20, 500),
        };
        PaymentRequest {
            exchange: Some(EXCHANGE_URL.to_owned()),
            amount: cents(amount).of(currency()),
            max_fee: if context.random.chance(500) { Money::ZERO } else { cents(3) },
            merchant_pub: merchant(number).public_key(),
            merchant_payto: payto(&merchant_account(number)),
            wire_salt: WireSalt::from_bytes(context.random.bytes()),
            h_contract_terms: HashCode::from_bytes(context.random.bytes()),
            timestamp: None,
            refund_deadline: after(refund_in),
            wire_transfer_deadline: after(wire_in),
            summary: String::new(),
        }
    }

    fn pay(&mut self, context: &mut Context) -> Step {
        let request = self.contract(context);
        let begun = payment::start(&self.state, &request, self.now(context), &mut self.entropy);
        self.begin(context, begun).map(|_| ())
    }

    fn deposit(&mut self, context: &mut Context) -> Step {
        let amount = if context.random.chance(300) {
            DepositAmount::All
        } else {
            DepositAmount::Exact(cents(context.random.between(5, 300)).of(currency()))
        };
        let own = payto(&self.account());
        let now = self.now(context);
        let begun = payment::start_deposit(&self.state, EXCHANGE_URL, amount, &own, now, &mut self.entropy);
        self.begin(context, begun).map(|_| ())
    }

    /// A merchant refunds a part of a payment.
    fn take_refund(&mut self, context: &mut Context) -> Step {
        let now = self.now(context);
        let paid: Vec<OpId> = self
            .state
            .operations
            .values()
            .filter(|operation| match &operation.kind {
                OpKind::Payment(payment) => {
                    payment.stage == PaymentStage::Done
                        && payment.merchant_priv.is_none()
                        && now < payment.refund_deadline.saturating_add(Duration::from_secs(900))
                }
                _ => false,
            })
            .map(|operation| operation.id)
            .collect();
        if paid.is_empty() {
            return self.pay(context);
        }
        let id = *context.random.pick(&paid);
        let receipt = payment::receipt(&self.state, id).map_err(|error| self.wrong(&error))?;
        let operation = self.state.operation(id).map_err(|error| self.wrong(&error))?;
        let OpKind::Payment(payment) = &operation.kind else { return Ok(()) };
        let keys = (0..context.swarm.merchants).map(merchant);
        let mut keys = keys.filter(|key| key.public_key() == payment.merchant_pub);
        let Some(key) = keys.next() else { return Ok(()) };
        let h_contract_terms = payment.h_contract_terms;
        let mut permissions = Vec::new();
        let percent = *context.random.pick(&[100, 100, 50, 30]);
        for coin in &receipt.coins {
            let amount = coin.contribution.checked_mul(percent).and_then(|sum| sum.checked_div(100));
            let Ok(refund_amount) = amount else { continue };
            let rtransaction_id = self.next_refund;
            self.next_refund += 1;
            let message =
                MerchantRefund { h_contract_terms, coin_pub: coin.coin_pub, rtransaction_id, refund_amount };
            let merchant_sig = message.sign(&key);
            let amount = refund_amount;
            permissions.push(RefundPermission {
                coin_pub: coin.coin_pub,
                rtransaction_id,
                amount,
                merchant_sig,
            });
        }
        let begun = match refund::start(&self.state, &h_contract_terms, &permissions, now) {
            Ok(Some(begun)) => Ok(begun),
            Ok(None) => return Ok(()),
            Err(error) => Err(error),
        };
        self.begin(context, begun).map(|_| ())
    }

    /// Spends coins twice, with a copy of the wallet.
    fn steal(&mut self, context: &mut Context) -> Step {
        let mut copy = self.state.clone();
        let request = self.contract(context);
        let now = self.now(context);
        let Ok((id, changes)) = payment::start(&copy, &request, now, &mut self.entropy) else {
            return Ok(());
        };
        for change in changes {
            copy.apply(change);
        }
        if let Ok(Next::Request(request)) = core::next(&copy, id, 0) {
            context.marks.meet("theft.tried");
            self.ask(context, ProcessId::Exchange, *request, Purpose::Theft);
        }
        // Spends the same coins with the wallet itself.
        let request =
            PaymentRequest { h_contract_terms: HashCode::from_bytes(context.random.bytes()), ..request };
        let begun = payment::start(&self.state, &request, now, &mut self.entropy);
        self.begin(context, begun).map(|_| ())
    }

    /// Creates a withdrawal at the bank and selects a reserve for it, but never confirms it: the money is
    /// reserved for a day.
    fn abandon(&mut self, context: &mut Context) {
        let wopid = [0; 32];
        let order = |reserve_pub: Option<EddsaPublicKey>| OperationOrder {
            wopid,
            account: format!("customer-{}", self.index),
            units: 1_000_000,
            reserve_pub,
        };
        let key = EddsaPrivateKey::from_bytes(context.random.bytes()).public_key();
        let url = format!("{BANK_URL}operation");
        let create = HttpRequest::post(HttpContext::Bank, url.clone(), &order(None));
        let select = HttpRequest::post(HttpContext::Bank, url, &order(Some(key)));
        let first = self.orders.len();
        self.orders.push(Order { request: create, amount: Money::ZERO, is_done: false, after: None });
        self.orders.push(Order { request: select, amount: Money::ZERO, is_done: false, after: Some(first) });
    }
}
