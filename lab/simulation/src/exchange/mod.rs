//! The exchange: real rules and a real store, batch by batch, with requests and workers.

mod answers;
mod requests;
mod workers;

use std::collections::BTreeMap;
use std::sync::Arc;

use batzen_crypto::Wtid;
use batzen_engine::Batcher;
use batzen_exchange::reads::read;
use batzen_exchange::rules::{Answer, Command, DenomTable, ExchangeRules, Refusal, RulesConfig};
use batzen_protocol::{Duration, Timestamp};
use batzen_store::{Store, StoreError};
use batzen_tables::exchange::DepositKey;
use batzen_wallet::core::http::{HttpRequest, HttpResponse};

use crate::host::{Host, Step, Stop, names_damage};
use crate::keys::{EXCHANGE_URL, Keys, cents};
use crate::message::{Body, Context, Message, Place, Timer};
use crate::swarm::Bug;
pub(crate) use answers::Pending;
pub use answers::{ok as answer_of, store_failed};
pub(crate) use requests::{Decoded, RequestDecoder};

/// The rules' answer to a command.
type Verdict = Result<Answer, Refusal>;

struct Running {
    store: Store,
    rules: Arc<ExchangeRules>,
    batcher: Batcher<ExchangeRules>,
}

/// The kind of a request to the bank.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Question {
    History,
    Transfer(Wtid),
}

/// The exchange with its workers.
pub struct Exchange {
    /// Its process.
    pub host: Host,
    running: Option<Running>,
    questions: BTreeMap<u64, Question>,
    /// Successful requests to the bank: URL, request, answer.
    pub acknowledged: Vec<(HttpRequest, HttpResponse)>,
    asked: BTreeMap<u64, HttpRequest>,
    /// Whether the wirewatch worker sleeps for ever, for [`Bug::LostWakeup`].
    sleeps: bool,
    /// The last transfer requested from the bank, for [`Bug::PaysAgainAfterCrash`].
    last_transfer: Option<HttpRequest>,
    transfers_answered: BTreeMap<Wtid, u32>,
}

fn rules_config() -> RulesConfig {
    RulesConfig { idle_reserve_expiration: Duration::from_days(2), ..RulesConfig::new(EXCHANGE_URL) }
}

impl Exchange {
    /// A new exchange; [`Exchange::start`] starts it.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            host: Host::new(Place::Exchange, seed, batzen_tables::exchange::ALL),
            running: None,
            questions: BTreeMap::new(),
            acknowledged: Vec::new(),
            asked: BTreeMap::new(),
            sleeps: false,
            last_transfer: None,
            transfers_answered: BTreeMap::new(),
        }
    }

    /// Its store, while it runs.
    #[must_use]
    pub fn store(&self) -> Option<(&Store, &DenomTable)> {
        self.running.as_ref().map(|running| (&running.store, &*running.rules.denoms))
    }

    /// Starts.
    ///
    /// # Errors
    /// When the store does not open or cannot be read.
    pub fn start(&mut self, context: &mut Context) -> Step {
        self.forget();
        let Some(store) = self.host.open(context)? else { return Ok(()) };
        let loaded = DenomTable::load(&store).and_then(|denoms| {
            if denoms.serial_max() > 0 {
                return Ok(denoms);
            }
            Keys::get().install(&store)?;
            DenomTable::load(&store)
        });
        let denoms = match loaded {
            Ok(denoms) => denoms,
            Err(_) if self.host.has_died(context) => return Ok(()),
            Err(StoreError::Full(_)) => {
                self.host.die(context);
                return Ok(());
            }
            Err(error) => return Err(self.host.refused(context, &error)),
        };
        if context.has(Bug::LyingDisk) {
            self.host.drive().lie_about_syncs();
        }
        let rules = Arc::new(ExchangeRules::new(Arc::new(denoms), rules_config()));
        let batcher = Batcher::new(Arc::clone(&rules), store.clone());
        self.running = Some(Running { store, rules, batcher });
        for timer in [Timer::Wirewatch, Timer::Aggregate, Timer::Close, Timer::Transfer] {
            let after = context.random.between(1_000, context.swarm.worker_gap);
            context.wake(Place::Exchange, self.host.incarnation, after, timer);
        }
        if context.has(Bug::PaysAgainAfterCrash)
            && let Some(mut request) = self.last_transfer.take()
        {
            workers::with_new_uid(&mut request, &mut context.random);
            self.ask(context, request, None);
        }
        Ok(())
    }

    /// The process has ended: drops all its memory.
    fn forget(&mut self) {
        self.running = None;
        self.questions.clear();
        self.asked.clear();
        self.sleeps = false;
    }

    /// Kills it now.
    pub fn kill(&mut self, context: &mut Context) {
        if self.host.is_up() {
            self.forget();
            self.host.die(context);
        }
    }

    fn lost(&mut self, context: &mut Context) -> bool {
        let has_died = self.host.has_died(context);
        if has_died {
            self.forget();
        }
        has_died
    }

    fn ask(&mut self, context: &mut Context, request: HttpRequest, question: Option<Question>) {
        let call = context.call();
        if let Some(question) = question {
            self.questions.insert(call, question);
        }
        self.asked.insert(call, request.clone());
        let body = Body::Ask(std::rc::Rc::new(request));
        context.send(Message { from: Place::Exchange, to: Place::Bank, call, body });
    }

    /// A message arrives.
    ///
    /// # Errors
    /// If a check fails.
    pub fn arrive(&mut self, context: &mut Context, message: Message) -> Step {
        if !matches!(message.body, Body::Reply(_)) || !self.host.is_up() {
            self.host.arrive(context, message);
            return Ok(());
        }
        let Body::Reply(response) = message.body else { return Ok(()) };
        let Some(request) = self.asked.remove(&message.call) else { return Ok(()) };
        if response.status == 200 && request.body.is_some() {
            self.acknowledged.push((request.clone(), (*response).clone()));
        }
        match self.questions.remove(&message.call) {
            Some(Question::History) => self.book_history(context, &response),
            Some(Question::Transfer(wtid)) => {
                if response.status == 200 {
                    self.last_transfer = Some(request);
                }
                self.book_transfer(context, wtid, &response)
            }
            None => Ok(()),
        }
    }

    /// A timer fires.
    ///
    /// # Errors
    /// If a check fails.
    pub fn timer(&mut self, context: &mut Context, timer: Timer) -> Step {
        match timer {
            Timer::Batch => self.batch(context),
            Timer::Maintain => {
                self.host.maintain(context)?;
                if !self.host.is_up() {
                    self.forget();
                }
                Ok(())
            }
            timer => self.work(context, timer),
        }
    }

    fn now(&self, context: &Context) -> Timestamp {
        if context.has(Bug::ReadsClockOnce) { self.host.began } else { self.host.clock(context) }
    }

    /// Decides commands as one batch. `None` if the batch was not committed, or the process died.
    fn run(&mut self, context: &mut Context, commands: &[Command]) -> Step<Option<Vec<Verdict>>> {
        let now = self.now(context);
        self.host.before_batch(context);
        let Some(running) = &self.running else { return Ok(None) };
        let result = running.batcher.run(commands, &move || now);
        if self.lost(context) {
            return Ok(None);
        }
        match result {
            Ok(verdicts) => Ok(Some(verdicts)),
            Err(error) => {
                self.host.note_failure(context, &error)?;
                Ok(None)
            }
        }
    }

    /// Handles the received requests as one batch.
    fn batch(&mut self, context: &mut Context) -> Step {
        let messages = self.host.take_inbox(context);
        let mut commands = Vec::new();
        let mut waiting = Vec::new();
        let now = self.now(context);
        for message in messages {
            let Body::Ask(request) = &message.body else { continue };
            let Some(Running { store, .. }) = &self.running else { return Ok(()) };
            let noreveal_index = u8::try_from(context.random.below(3)).expect("below three");
            let decoded = RequestDecoder { keys: Keys::get(), store, now, noreveal_index }.decode(request);
            if self.lost(context) {
                return Ok(());
            }
            match decoded {
                Decoded::Reply(response) => {
                    response_without_damage(&response)?;
                    reply(context, &message, response);
                }
                Decoded::Command(command, pending) => match plant(context, *command, pending, self.store()) {
                    Ok((command, pending)) => {
                        commands.push(command);
                        waiting.push((message, pending));
                    }
                    Err(response) => reply(context, &message, response),
                },
            }
        }
        if commands.is_empty() {
            return Ok(());
        }
        for command in &commands {
            check_expiry(context, command);
        }
        let Some(verdicts) = self.run(context, &commands)? else {
            if self.host.is_up() {
                let unavailable = store_failed(&StoreError::Full(String::new()));
                for (message, _) in waiting {
                    reply(context, &message, unavailable.clone());
                }
            }
            return Ok(());
        };
        for ((message, pending), verdict) in waiting.into_iter().zip(verdicts) {
            if let (Ok(Answer::Withdraw(withdrawn)), Body::Ask(request)) = (&verdict, &message.body)
                && !withdrawn.repeated
            {
                check_window(context, request)?;
            }
            let response = match verdict {
                Ok(outcome) => pending.answer(outcome, &mut context.marks),
                Err(refusal) => {
                    context.say(&format!("refused  {refusal}"));
                    pending.refuse(&refusal, now, &mut context.marks)
                }
            };
            reply(context, &message, response);
        }
        Ok(())
    }

    /// Answers a request at once, without network and faults, for the checker.
    ///
    /// # Errors
    /// If a check fails.
    pub fn answer(&mut self, context: &mut Context, request: &HttpRequest) -> Step<HttpResponse> {
        let now = self.now(context);
        let Some((store, _)) = self.store() else { return Err(Stop::wrong("the exchange is down")) };
        match (RequestDecoder { keys: Keys::get(), store, now, noreveal_index: 0 }).decode(request) {
            Decoded::Reply(response) => Ok(response),
            Decoded::Command(command, pending) => {
                let verdicts = self.run(context, &[*command])?;
                let verdict = verdicts.and_then(|mut verdicts| verdicts.pop());
                match verdict {
                    Some(Ok(outcome)) => Ok(pending.answer(outcome, &mut context.marks)),
                    Some(Err(refusal)) => Ok(pending.refuse(&refusal, now, &mut context.marks)),
                    None => Err(Stop::wrong("a repeated request is not answered")),
                }
            }
        }
    }
}

/// Fails the run if a service found damage in its store: an error answer is not enough.
pub fn response_without_damage(response: &HttpResponse) -> Step {
    let text = String::from_utf8_lossy(&response.body);
    if response.status == 503 && names_damage(&text) { Err(Stop::wrong(text)) } else { Ok(()) }
}

fn reply(context: &mut Context, message: &Message, response: HttpResponse) {
    context.send(message.reply(Body::Reply(std::rc::Rc::new(response))));
}

/// Marks an attempt to withdraw from an expired denomination.
fn check_expiry(context: &mut Context, command: &Command) {
    let Command::Withdraw(withdraw) = command else { return };
    let is_over = |planchet: &batzen_exchange::rules::Planchet| {
        let denom = Keys::get().by_serial(planchet.denom);
        denom.is_some_and(|denom| denom.terms.stamp_expire_withdraw.as_micros() < context.now)
    };
    if withdraw.planchets.iter().any(is_over) {
        context.marks.meet("withdraw.after_expiry");
    }
}

/// The largest error of a clock, in microseconds.
pub const CLOCK_ERROR_MAX: u64 = 300 * 1_000_000;

/// No denomination may sign after its expiry, whatever the clock shows.
fn check_window(context: &Context, request: &HttpRequest) -> Step {
    let text = String::from_utf8_lossy(request.body.as_deref().unwrap_or_default());
    for denom in &Keys::get().denoms {
        let end = denom.terms.stamp_expire_withdraw.as_micros();
        if end + CLOCK_ERROR_MAX < context.now && text.contains(&denom.h.to_string()) {
            let late_s = (context.now - end) / 1_000_000;
            return Err(Stop::wrong(format!(
                "the exchange signed a coin with a denomination that had expired {late_s} s before"
            )));
        }
    }
    Ok(())
}

/// The effect of a planted bug on a command: another command, or an immediate answer.
fn plant(
    context: &mut Context,
    mut command: Command,
    pending: Pending,
    store: Option<(&Store, &DenomTable)>,
) -> Result<(Command, Pending), HttpResponse> {
    match (context.bug, &mut command) {
        (Some(Bug::IgnoresRefunds), Command::Refund(_)) => return Err(pending.confirm_refund()),
        (Some(Bug::RefundsEveryCopy), Command::Refund(refund)) => {
            refund.key.rtransaction_id = context.random.draw() >> 1;
        }
        (Some(Bug::ForgetsSpentCoins), Command::Deposit(deposit)) => {
            let Some((store, _)) = store else { return Ok((command, pending)) };
            let is_spent = deposit.coins.iter().any(|coin| {
                let key = DepositKey {
                    coin_pub: coin.coin.coin_pub,
                    merchant_pub: deposit.merchant_pub,
                    h_contract_terms: deposit.h_contract_terms,
                };
                let row = read::coin(store, coin.coin.coin_pub).ok().flatten();
                let is_new = read::deposit(store, &key).ok().flatten().is_none();
                is_new && row.is_some_and(|row| row.remaining < coin.contribution)
            });
            if is_spent {
                let coins = deposit
                    .coins
                    .iter()
                    .map(|coin| batzen_exchange::rules::DepositedCoin {
                        wire_deadline: deposit.wire_deadline,
                        amount_without_fee: coin.contribution.checked_sub(cents(1)).unwrap_or_default(),
                        repeated: false,
                    })
                    .collect();
                let outcome = Answer::Deposit(batzen_exchange::rules::Deposited {
                    exchange_time: context.time(),
                    coins,
                });
                return Err(pending.answer(outcome, &mut context.marks));
            }
        }
        _ => {}
    }
    Ok((command, pending))
}
