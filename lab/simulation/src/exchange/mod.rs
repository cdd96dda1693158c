//! The exchange: the real API, rules and store, in this thread, with workers.

mod workers;

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;

use batzen_crypto::Wtid;
use batzen_engine::SubmitError;
use batzen_exchange::error::StartError;
use batzen_exchange::reads::read;
use batzen_exchange::rules::{
    Aggregated, Answer, Closed, Command, ConflictReason, DenomProblem, DenomTable, Deposit, Deposited,
    DepositedCoin, PurseExpired, PurseMerged, RecoupRefreshed, Refunded, Refusal, Withdraw,
};
use batzen_protocol::payto::h_payto;
use batzen_protocol::{ErrorCode, Timestamp};
use batzen_store::{ChangeSet, Store, StoreError};
use batzen_tables::exchange::{DenomSerial, DepositKey, Revocations};
use batzen_wallet::core::http::{HttpRequest, HttpResponse};
use tokio::sync::oneshot;

use self::workers::{Asked, Run};
use crate::host::{DAMAGE, Host, Step, Stop, names_damage};
use crate::keys::{Keys, cents, identification, payto};
use crate::message::{Body, Context, Message, ProcessId, Timer};
use crate::random::Random;
use crate::service::{Call, Service, Verdict, served};
use crate::swarm::Bug;

struct Running {
    service: Service,
    /// The requests that are not answered yet.
    open: Vec<(Message, Call)>,
    /// The runs of workers that have not ended yet.
    runs: Vec<Run>,
}

/// The exchange with its workers.
pub struct Exchange {
    /// Its process.
    pub host: Host,
    running: Option<Running>,
    /// Successful requests to the bank: URL, request, answer.
    pub acknowledged: Vec<(HttpRequest, HttpResponse)>,
    /// Requests to the bank that are not answered yet, by their calls.
    asked: BTreeMap<u64, Asked>,
    /// Sleeping tasks.
    sleepers: BTreeMap<u64, oneshot::Sender<()>>,
    next_sleep: u64,
    /// Whether the wirewatch worker sleeps for ever, for [`Bug::LostWakeup`].
    sleeps: bool,
    /// The last transfer requested from the bank, for [`Bug::PaysAgainAfterCrash`].
    last_transfer: Option<HttpRequest>,
    asked_transfers: BTreeSet<Wtid>,
    transfers_answered: BTreeMap<Wtid, u32>,
    /// Hashes of the requests that it has granted.
    granted: BTreeSet<u64>,
}

impl Exchange {
    /// A new exchange; [`Exchange::start`] starts it.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            host: Host::new(ProcessId::Exchange, seed, batzen_tables::exchange::ALL),
            running: None,
            acknowledged: Vec::new(),
            asked: BTreeMap::new(),
            sleepers: BTreeMap::new(),
            next_sleep: 0,
            sleeps: false,
            last_transfer: None,
            asked_transfers: BTreeSet::new(),
            transfers_answered: BTreeMap::new(),
            granted: BTreeSet::new(),
        }
    }

    /// Its store, while it runs.
    #[must_use]
    pub fn store(&self) -> Option<(&Store, &DenomTable)> {
        let core = &self.running.as_ref()?.service.app.core;
        Some((&core.store, &*core.rules.denoms))
    }

    /// Starts.
    ///
    /// # Errors
    /// When the store does not open or cannot be read.
    pub fn start(&mut self, context: &mut Context) -> Step {
        self.forget();
        let Some(store) = self.host.open(context)? else { return Ok(()) };
        let random = Random::new(context.random.draw());
        let service = match self.serve(context, &store, random) {
            Ok(service) => service,
            Err(_) if self.host.has_died(context) => return Ok(()),
            Err(StartError::Store(StoreError::Full(_))) => {
                self.host.die(context);
                return Ok(());
            }
            Err(error) => return Err(self.host.refused(context, &error)),
        };
        if context.has(Bug::LyingDisk) {
            self.host.drive().lie_about_syncs();
        }
        self.running = Some(Running { service, open: Vec::new(), runs: Vec::new() });
        for timer in [Timer::Wirewatch, Timer::Aggregate, Timer::Close, Timer::Transfer, Timer::Expire] {
            let after = context.random.between(1_000, context.swarm.worker_gap);
            context.wake(ProcessId::Exchange, self.host.incarnation, after, timer);
        }
        if context.has(Bug::PaysAgainAfterCrash)
            && let Some(mut request) = self.last_transfer.take()
        {
            workers::with_new_uid(&mut request, &mut context.random);
            self.ask(context, request, None);
        }
        Ok(())
    }

    fn serve(&self, context: &Context, store: &Store, random: Random) -> Result<Service, StartError> {
        let keys = Keys::get();
        if !Keys::are_installed(store)? {
            keys.install(store)?;
        }
        if context.has(Bug::ForgetsRevocations) {
            for found in store.all::<Revocations>()? {
                let mut changes = ChangeSet::new();
                changes.delete::<Revocations>(&found.key, &found.row);
                let _ = store.commit(&changes)?;
            }
        }
        let modules = Arc::clone(&keys.modules);
        let mut config = keys.config.clone();
        if context.swarm.identifies && !(context.has(Bug::ForgetsLimits) && self.host.incarnation > 1) {
            config.kyc = identification();
        }
        Service::start(config, modules, store.clone(), self.now(context), random)
    }

    /// The process has ended: drops all its memory.
    fn forget(&mut self) {
        self.running = None;
        self.asked.clear();
        self.sleepers.clear();
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

    /// A message arrives.
    ///
    /// # Errors
    /// If a check fails.
    pub fn arrive(&mut self, context: &mut Context, message: Message) -> Step {
        if !self.host.is_up() {
            context.marks.meet("message.to_dead_process");
            return Ok(());
        }
        match &message.body {
            Body::Ask(request) => {
                let request = Rc::clone(request);
                self.begin(context, message, &request)
            }
            Body::Reply(response) => self.receive(context, message.call, response),
            Body::LedgerAsk(_) | Body::LedgerReply(_) => Ok(()),
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
            Timer::GiveUp(call) => self.give_up(context, call),
            Timer::Slept(sleep) => self.awake(context, sleep),
            timer => self.work(context, timer),
        }
    }

    fn now(&self, context: &Context) -> Timestamp {
        if context.has(Bug::ReadsClockOnce) { self.host.began } else { self.host.clock(context) }
    }

    /// Begins to answer a request, as far as that is possible without a batch.
    fn begin(&mut self, context: &mut Context, message: Message, request: &HttpRequest) -> Step {
        let Some(running) = &mut self.running else { return Ok(()) };
        running.open.push((message, running.service.call(request)));
        self.go_on(context)
    }

    /// Continues all requests and workers. Sends the answers that are ready, and what workers send; the others wait for
    /// the next batch, for the bank, or for a timer.
    fn go_on(&mut self, context: &mut Context) -> Step {
        let now = self.now(context);
        let Some(Running { service, open, runs }) = &mut self.running else { return Ok(()) };
        service.set_clock(now);
        service.outside.set_now(context.now);
        let (mut answered, mut ended) = (Vec::new(), Vec::new());
        for (message, mut call) in std::mem::take(open) {
            match call.poll() {
                Some(response) => answered.push((message, served(response))),
                None => open.push((message, call)),
            }
        }
        for mut run in std::mem::take(runs) {
            match run.poll() {
                Some(end) => ended.push((run, end)),
                None => runs.push(run),
            }
        }
        let (sent, sleeps) = service.outside.take();
        if service.has_waiting() {
            self.host.schedule(context);
        }
        if self.lost(context) {
            return Ok(());
        }
        for (message, response) in answered {
            response_without_damage(&response)?;
            self.note_answer(context, &message, &response);
            reply(context, &message, response);
        }
        for (run, end) in ended {
            run.judge(self, context, end)?;
        }
        self.send(context, sent);
        self.sleep(context, sleeps);
        Ok(())
    }

    /// Marks repetitions of granted requests, and refusals that only few runs see.
    fn note_answer(&mut self, context: &mut Context, message: &Message, response: &HttpResponse) {
        let Body::Ask(request) = &message.body else { return };
        let Some(body) = &request.body else { return };
        if response.status != 200 {
            return;
        }
        let mut hasher = DefaultHasher::new();
        (&request.url, body).hash(&mut hasher);
        let is_repeated = !self.granted.insert(hasher.finish());
        let operation = request.url.rsplit('/').next().unwrap_or_default();
        match (operation, is_repeated) {
            ("withdraw" | "batch-withdraw", true) => context.marks.meet("withdraw.repeated"),
            ("deposit" | "batch-deposit", true) => context.marks.meet("deposit.repeated"),
            ("melt", true) => context.marks.meet("melt.repeated"),
            ("reveal", true) => context.marks.meet("reveal.repeated"),
            ("refund", true) => context.marks.meet("refund.repeated"),
            ("refund", false) => context.marks.meet("refund.accepted"),
            ("recoup", false) => context.marks.meet("recoup.accepted"),
            ("recoup-refresh", false) => context.marks.meet("recoup_refresh.accepted"),
            ("recoup" | "recoup-refresh", true) => context.marks.meet("recoup.repeated"),
            _ => {}
        }
    }

    /// Decides commands as one batch. `None` if the process died; an inner error if the batch was not committed.
    fn run(&mut self, context: &mut Context, commands: &[Command]) -> Step<Option<Decided>> {
        let now = self.now(context);
        self.host.before_batch(context);
        let Some(running) = &self.running else { return Ok(None) };
        running.service.set_clock(now);
        let result = running.service.decide(commands);
        if self.lost(context) {
            return Ok(None);
        }
        match result {
            Ok(verdicts) => Ok(Some(Ok(verdicts))),
            Err(error) => {
                self.host.note_failure(context, &error)?;
                Ok(Some(Err(Arc::new(error))))
            }
        }
    }

    /// Decides the waiting commands of requests as one batch.
    fn batch(&mut self, context: &mut Context) -> Step {
        self.host.take_inbox(context);
        let Some(running) = &self.running else { return Ok(()) };
        let waiting = running.service.take();
        if waiting.len() > 1 {
            context.marks.meet("batch.several");
        }
        let (mut commands, mut answers) = (Vec::new(), Vec::new());
        for (mut command, answer) in waiting {
            match plant(context, &mut command, self.store()) {
                Some(verdict) => answer.send(Ok(verdict)),
                None => {
                    check_expiry(context, &command);
                    commands.push(command);
                    answers.push(answer);
                }
            }
        }
        if !commands.is_empty() {
            let Some(decided) = self.run(context, &commands)? else { return Ok(()) };
            match decided {
                Ok(verdicts) => {
                    for ((command, answer), verdict) in commands.iter().zip(answers).zip(verdicts) {
                        note_verdict(context, command, &verdict)?;
                        answer.send(Ok(verdict));
                    }
                }
                Err(error) => {
                    for answer in answers {
                        answer.send(Err(SubmitError::Store(Arc::clone(&error))));
                    }
                }
            }
        }
        self.go_on(context)
    }

    /// Answers a request at once, without network and faults, for the checker.
    ///
    /// # Errors
    /// If a check fails.
    pub fn answer(&mut self, context: &mut Context, request: &HttpRequest) -> Step<HttpResponse> {
        let now = self.now(context);
        let Some(running) = &self.running else { return Err(Stop::wrong("the exchange is down")) };
        running.service.set_clock(now);
        Ok(running.service.answer(request))
    }
}

/// The decisions on a batch, or why it was not committed.
type Decided = Result<Vec<Verdict>, Arc<StoreError>>;

/// Fails the run if a service found damage in its store: an error answer is not enough.
pub fn response_without_damage(response: &HttpResponse) -> Step {
    if response.status < 500 {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&response.body);
    if names_damage(&text) {
        return Err(Stop::wrong(text));
    }
    if response.code() == ErrorCode::GENERIC_DB_INVARIANT_FAILURE {
        return Err(Stop::wrong(format!("{DAMAGE}the store of a service: {text}")));
    }
    Ok(())
}

fn reply(context: &mut Context, message: &Message, response: HttpResponse) {
    context.send(message.reply(Body::Reply(std::rc::Rc::new(response))));
}

/// Marks an attempt to withdraw from an expired denomination.
fn check_expiry(context: &mut Context, command: &Command) {
    let Command::Withdraw(withdraw) = command else { return };
    let mut denoms = withdraw.planchets.iter().filter_map(|planchet| Keys::get().by_serial(planchet.denom));
    if denoms.any(|denom| denom.expire_withdraw.as_micros() < context.now) {
        context.marks.meet("withdraw.after_expiry");
    }
}

/// Marks rare decisions, and checks those that sign coins.
fn note_verdict(context: &mut Context, command: &Command, verdict: &Verdict) -> Step {
    match (command, verdict) {
        (Command::Withdraw(withdraw), Ok(Answer::Withdraw(withdrawn))) if !withdrawn.repeated => {
            check_window(context, withdraw)?;
            check_revocation(context, withdraw.planchets.iter().map(|planchet| planchet.denom))?;
        }
        (Command::Reveal(reveal), Ok(Answer::Reveal(revealed))) if !revealed.repeated => {
            check_revocation(context, reveal.fresh.iter().map(|coin| coin.denom))?;
        }
        (_, Ok(Answer::Aggregate(aggregated))) => context.marks.meet(match aggregated {
            Aggregated::Prepared { .. } => "aggregate.paid",
            Aggregated::Transient { .. } => "aggregate.small",
            Aggregated::Nothing => "aggregate.nothing",
        }),
        (_, Ok(Answer::CloseReserve(Closed::Closed { paid, .. }))) => {
            context.marks.meet(if paid.is_zero() { "close.unpaid" } else { "close.paid" });
        }
        (_, Ok(Answer::PurseMerge(merged))) if merged.is_new => context.marks.meet("purse.merged"),
        (_, Ok(Answer::PurseDeposit(deposited))) if deposited.credited.is_some() => {
            context.marks.meet("purse.request_paid");
        }
        (Command::PurseExpire(expire), Ok(Answer::PurseExpire(PurseExpired::Expired))) => {
            context.marks.meet(if expire.coins.is_empty() { "purse.expired" } else { "purse.refunded" });
        }
        (_, Ok(Answer::PurseDelete(_))) => context.marks.meet("purse.deleted"),
        (_, Err(refusal)) => {
            context.say(&format!("refused  {refusal}"));
            match refusal {
                Refusal::CoinConflict { conflict, .. }
                    if matches!(conflict.reason, ConflictReason::Insufficient { .. }) =>
                {
                    context.marks.meet("deposit.refused_spent");
                }
                Refusal::DenominationUnusable { problem: DenomProblem::Revoked, .. } => {
                    context.marks.meet("revocation.within_request");
                }
                Refusal::DepositPaid => context.marks.meet("refund.too_late"),
                _ => {}
            }
        }
        _ => {}
    }
    Ok(())
}

/// The largest error of a clock, in microseconds.
pub const CLOCK_ERROR_MAX: u64 = 300 * 1_000_000;

/// No denomination may sign after its expiry, whatever the clock shows.
fn check_window(context: &Context, withdraw: &Withdraw) -> Step {
    for planchet in &withdraw.planchets {
        let Some(denom) = Keys::get().by_serial(planchet.denom) else { continue };
        let end = denom.expire_withdraw.as_micros();
        if end + CLOCK_ERROR_MAX < context.now {
            let late_s = (context.now - end) / 1_000_000;
            return Err(Stop::wrong(format!(
                "the exchange signed a coin with a denomination that had expired {late_s} s before"
            )));
        }
    }
    Ok(())
}

/// No revoked denomination may sign after its revocation was confirmed.
fn check_revocation(context: &Context, mut signed: impl Iterator<Item = DenomSerial>) -> Step {
    let revoked = context.revoked.map(|index| Keys::get().denoms[index].serial);
    if signed.any(|serial| Some(serial) == revoked) {
        return Err(Stop::wrong("the exchange signed a coin with a revoked denomination"));
    }
    Ok(())
}

/// The effect of a planted bug on a command: it changes the command, or decides it without the rules.
fn plant(
    context: &mut Context,
    command: &mut Command,
    store: Option<(&Store, &DenomTable)>,
) -> Option<Verdict> {
    match (context.bug, command) {
        (Some(Bug::IgnoresRefunds), Command::Refund(_)) => {
            Some(Ok(Answer::Refund(Refunded { repeated: false })))
        }
        (Some(Bug::RefundsEveryCopy), Command::Refund(refund)) => {
            refund.key.rtransaction_id = context.random.draw() >> 1;
            None
        }
        (Some(Bug::RedirectsDeposits), Command::Deposit(deposit)) => {
            deposit.payto_uri = payto("customer-0");
            deposit.h_payto = h_payto(&deposit.payto_uri);
            None
        }
        (Some(Bug::KeepsExpiredPurses), Command::PurseExpire(_)) => {
            Some(Ok(Answer::PurseExpire(PurseExpired::NotDue)))
        }
        (Some(Bug::ConfirmsEveryMerge), Command::PurseMerge(merge)) => {
            let (purse, merged) = read::purse(store?.0, merge.purse_pub).ok()??;
            let is_other = merged.is_some_and(|merged| merged.reserve_pub != merge.reserve_pub);
            is_other.then_some(Ok(Answer::PurseMerge(PurseMerged { purse, is_new: false })))
        }
        (Some(Bug::IgnoresRecoups), Command::RecoupRefresh(recoup)) => {
            let row = read::coin(store?.0, recoup.coin.coin_pub).ok()?;
            let value = || Keys::get().by_serial(recoup.coin.denom).map(|denom| denom.value);
            let amount = row.map(|row| row.remaining).or_else(value)?;
            let (old_coin_pub, time) = (recoup.old_coin_pub, context.time());
            Some(Ok(Answer::RecoupRefresh(RecoupRefreshed { old_coin_pub, amount, time, repeated: false })))
        }
        (Some(Bug::ForgetsSpentCoins), Command::Deposit(deposit)) => {
            let (store, _) = store?;
            pays_spent_coins(store, deposit).then(|| Ok(Answer::Deposit(accepted(context, deposit))))
        }
        _ => None,
    }
}

/// Returns whether a new deposit takes more from a coin than it has left.
fn pays_spent_coins(store: &Store, deposit: &Deposit) -> bool {
    deposit.coins.iter().any(|coin| {
        let key = DepositKey {
            coin_pub: coin.coin.coin_pub,
            merchant_pub: deposit.merchant_pub,
            h_contract_terms: deposit.h_contract_terms,
        };
        let row = read::coin(store, coin.coin.coin_pub).ok().flatten();
        let is_new = read::deposit(store, &key).ok().flatten().is_none();
        is_new && row.is_some_and(|row| row.remaining < coin.contribution)
    })
}

fn accepted(context: &Context, deposit: &Deposit) -> Deposited {
    let coin = |coin: &batzen_exchange::rules::DepositCoin| DepositedCoin {
        wire_deadline: deposit.wire_deadline,
        amount_without_fee: coin.contribution.checked_sub(cents(1)).unwrap_or_default(),
        repeated: false,
    };
    Deposited { exchange_time: context.time(), coins: deposit.coins.iter().map(coin).collect() }
}
