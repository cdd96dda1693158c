//! The bank: real rules and a real store, with the ledger behind the network. A movement of money takes four
//! steps: intent, request, ledger, booking. A crash may happen between any two of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, ControlFlow};
use std::rc::Rc;
use std::sync::Arc;

use batzen_bank::chart::{Chart, verdict};
use batzen_bank::rules::{
    self, Answer, BankRules, Booking, Command, CreateWithdrawal, Finish, Finished, Intent, Pay, Policy,
    Refusal, Register, SelectWithdrawal, Transfer,
};
use batzen_crypto::EddsaPublicKey;
use batzen_engine::Batcher;
use batzen_protocol::Money;
use batzen_protocol::api::bank::{
    IncomingHistory, IncomingTransaction, TransactionResponse, TransferRequest,
};
use batzen_store::{Found, Store, StoreError};
use batzen_tables::bank::{BankIntents, BankStateKey, BankStates, BankTransactions, Origin, TransactionKey};
use batzen_wallet::core::http::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};

use crate::exchange::response_without_damage;
use crate::host::{Host, Step, Stop};
use crate::keys::{BANK_URL, EXCHANGE_ACCOUNT, currency, payto};
use crate::ledger::Ledger;
use crate::message::{Body, Context, LedgerAsk, LedgerReply, Message, ProcessId, Timer};
use crate::swarm::{Bug, SECOND};

/// A customer's order, as the customer's page sends it: a payment into a reserve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PayOrder {
    /// Identifies the payment; chosen by the page.
    pub id: [u8; 16],
    /// The paying account.
    pub account: String,
    /// The amount.
    pub units: u64,
    /// The reserve.
    pub reserve_pub: EddsaPublicKey,
}

/// A withdrawal operation for which a wallet selects a reserve, and which its owner never confirms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationOrder {
    /// The operation's id, from the bank's answer to its creation.
    pub wopid: [u8; 32],
    /// The account that would pay.
    pub account: String,
    /// The amount.
    pub units: u64,
    /// The reserve; `None` if the operation must still be created.
    pub reserve_pub: Option<EddsaPublicKey>,
}

struct Running {
    store: Store,
    batcher: Batcher<BankRules>,
    chart: Chart,
}

/// An intent that the ledger has not answered yet.
struct Open {
    intent: Intent,
    /// The requests that wait for its outcome.
    askers: Vec<Message>,
    /// Other requests that it blocks, with their commands.
    waiting: Vec<(Message, Command)>,
    call: u64,
}

type IntentId = (u8, Vec<u8>);

/// The bank.
pub struct Bank {
    /// Its process.
    pub host: Host,
    running: Option<Running>,
    open: BTreeMap<IntentId, Open>,
    /// Answers of the ledger that will be booked with the next batch.
    answered: Vec<(IntentId, Rc<LedgerReply>)>,
    /// Commands that waited for an intent and must run again.
    again: Vec<(Message, Command)>,
    /// Earlier orders, for [`Bug::PaysEveryCopy`].
    seen: BTreeSet<[u8; 16]>,
}

fn id_of(key: &TransactionKey) -> IntentId {
    (key.origin, key.id.clone())
}

fn money(units: u64) -> Money {
    Money::from_units(u128::from(units)).unwrap_or(Money::ZERO)
}

impl Bank {
    /// A new bank; [`Bank::start`] starts it.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            host: Host::new(ProcessId::Bank, seed, batzen_tables::bank::ALL),
            running: None,
            open: BTreeMap::new(),
            answered: Vec::new(),
            again: Vec::new(),
            seen: BTreeSet::new(),
        }
    }

    /// Its store and its chart, while it runs.
    #[must_use]
    pub fn books(&self) -> Option<(&Store, &Chart)> {
        self.running.as_ref().map(|running| (&running.store, &running.chart))
    }

    /// Number of movements that are undecided.
    #[must_use]
    pub fn open_intents(&self) -> usize {
        self.open.len()
    }

    fn forget(&mut self) {
        self.running = None;
        self.open.clear();
        self.answered.clear();
        self.again.clear();
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

    /// Sets up the bank in an empty store, with a ledger, before any fault can occur.
    ///
    /// # Errors
    /// When store or ledger fail.
    pub fn found(&mut self, context: &mut Context, ledger: &mut Ledger) -> Step {
        self.start(context)?;
        let Some(Running { chart, batcher, .. }) = &self.running else {
            return Err(Stop::wrong("the bank does not start"));
        };
        let ask = LedgerAsk { accounts: chart.own_accounts().to_vec(), transfers: Vec::new() };
        ledger.answer(context, &ask)?;
        let now = context.time();
        let password_hash = batzen_crypto::ShortHash::ZERO;
        let register = Command::Register(Register { name: EXCHANGE_ACCOUNT.to_owned(), password_hash });
        let done = batcher.run(&[register], &move || now);
        done.map(|_| ()).map_err(|error| Stop::wrong(error.to_string()))
    }

    /// Starts: reads its identity, and continues open movements.
    ///
    /// # Errors
    /// When the store does not open or cannot be read.
    pub fn start(&mut self, context: &mut Context) -> Step {
        self.forget();
        let Some(store) = self.host.open(context)? else { return Ok(()) };
        match self.begin(context, &store) {
            Ok(running) => self.running = Some(running),
            Err(_) if self.lost(context) => return Ok(()),
            Err(StoreError::Full(_)) => {
                self.host.die(context);
                return Ok(());
            }
            Err(error) => return Err(self.host.refused(context, &error)),
        }
        let mut left_open = Vec::new();
        let scanned = store.scan::<BankIntents>(|found| {
            if found.row.is_open {
                let (opens_debit, opens_credit) = match found.key.origin() {
                    Origin::Bonus => (false, true),
                    Origin::Release => (false, false),
                    _ => (true, true),
                };
                left_open.push(Intent { key: found.key, row: found.row, opens_debit, opens_credit });
            }
            ControlFlow::Continue(())
        });
        match scanned {
            Ok(()) => {}
            Err(_) if self.lost(context) => return Ok(()),
            Err(error) => return Err(self.host.refused(context, &error)),
        }
        for intent in left_open {
            context.marks.meet("bank.finished_after_restart");
            self.settle(context, intent, None);
        }
        context.wake(ProcessId::Bank, self.host.incarnation, 5 * SECOND, Timer::Repeat);
        Ok(())
    }

    fn begin(&mut self, context: &Context, store: &Store) -> Result<Running, StoreError> {
        let batcher = Batcher::new(Arc::new(BankRules { policy: Policy::default() }), store.clone());
        let now = self.host.clock(context);
        let open =
            Command::Open(rules::Open { currency: currency(), password_salt: [1; 16], identity: [2; 16] });
        let verdicts = batcher.run(&[open], &move || now)?;
        assert!(matches!(verdicts.first(), Some(Ok(Answer::Opened(_)))), "the bank knows itself");
        let state = store.get::<BankStates>(&BankStateKey::ONLY)?.expect("it was opened").row;
        let chart = Chart::new(&state, currency());
        Ok(Running { store: store.clone(), batcher, chart })
    }

    /// A message arrives.
    pub fn arrive(&mut self, context: &mut Context, message: Message) {
        if let Body::LedgerReply(reply) = &message.body {
            let known = self.open.iter().find(|(_, open)| open.call == message.call);
            if let Some((id, _)) = known {
                self.answered.push((id.clone(), Rc::clone(reply)));
                self.host.schedule(context);
            }
            return;
        }
        self.host.arrive(context, message);
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
            Timer::Repeat => {
                let gap = if self.open.is_empty() { 300 } else { 20 };
                context.wake(ProcessId::Bank, self.host.incarnation, gap * SECOND, Timer::Repeat);
                let ids: Vec<IntentId> = self.open.keys().cloned().collect();
                for id in ids {
                    self.ask_ledger(context, &id);
                }
                Ok(())
            }
            other => Err(Stop::wrong(format!("the bank has no timer {other:?}"))),
        }
    }

    /// Sends an intent to the ledger.
    fn settle(&mut self, context: &mut Context, intent: Intent, asker: Option<Message>) {
        let id = id_of(&intent.key);
        let open = Open { intent, askers: asker.into_iter().collect(), waiting: Vec::new(), call: 0 };
        self.open.insert(id.clone(), open);
        self.ask_ledger(context, &id);
    }

    fn openings(&self, intent: &Intent) -> LedgerAsk {
        let Some(Running { chart, .. }) = &self.running else {
            return LedgerAsk { accounts: Vec::new(), transfers: Vec::new() };
        };
        let names = [
            (intent.opens_debit, &intent.row.debit_account),
            (intent.opens_credit, &intent.row.credit_account),
        ];
        let mut ask = LedgerAsk { accounts: Vec::new(), transfers: Vec::new() };
        for (_, name) in names.into_iter().filter(|(opens, _)| *opens) {
            let opening = chart.opening(name);
            ask.accounts.push(opening.account);
            ask.transfers.push(opening.headroom);
        }
        ask
    }

    fn ask_ledger(&mut self, context: &mut Context, id: &IntentId) {
        let (Some(open), Some(Running { chart, .. })) = (self.open.get(id), &self.running) else { return };
        let mut ask = self.openings(&open.intent);
        ask.transfers.extend(chart.transfers(&open.intent.key, &open.intent.row));
        let call = context.call();
        if context.has(Bug::BooksWithoutLedger) && open.call != 0 {
            // The first request was not answered; the bug treats that as a success.
            let created = |count| {
                let result = batzen_ledger::CreateResult {
                    timestamp: 1,
                    status: batzen_ledger::CreateTransferStatus::Created,
                };
                vec![result; count]
            };
            let reply = LedgerReply { accounts: Vec::new(), transfers: created(ask.transfers.len()) };
            self.answered.push((id.clone(), Rc::new(reply)));
            self.host.schedule(context);
            return;
        }
        if let Some(open) = self.open.get_mut(id) {
            open.call = call;
        }
        let body = Body::LedgerAsk(Rc::new(ask));
        context.send(Message { from: ProcessId::Bank, to: ProcessId::Ledger, call, body });
    }

    /// Applies the ledger's answer to an intent.
    fn judge(
        &self,
        id: &IntentId,
        reply: &LedgerReply,
    ) -> Step<Option<(Intent, batzen_bank::chart::Verdict)>> {
        let Some(open) = self.open.get(id) else { return Ok(None) };
        let openings = self.openings(&open.intent).transfers.len();
        let (headroom, own) = reply.transfers.split_at(openings.min(reply.transfers.len()));
        if !headroom.iter().all(|result| result.status.stands()) {
            return Err(Stop::wrong(format!("an account has no headroom: {headroom:?}")));
        }
        let statuses: Vec<_> = own.iter().map(|result| result.status).collect();
        let verdict = verdict(open.intent.key.origin(), &statuses)
            .map_err(|strange| Stop::wrong(format!("{strange}: {:?}", open.intent)))?;
        Ok(Some((open.intent.clone(), verdict)))
    }

    fn batch(&mut self, context: &mut Context) -> Step {
        let messages = self.host.take_inbox(context);
        let mut commands = Vec::new();
        let mut waiting: Vec<Option<Message>> = Vec::new();
        let mut finishes = Vec::new();
        for (id, reply) in std::mem::take(&mut self.answered) {
            if let Some(pair) = self.judge(&id, &reply)?
                && !finishes.iter().any(|(intent, _): &(Intent, _)| intent.key == pair.0.key)
            {
                finishes.push(pair);
            }
        }
        let finishes: Arc<[(Intent, batzen_bank::chart::Verdict)]> = finishes.into();
        if !finishes.is_empty() {
            commands.push(Command::Finish(Finish(Arc::clone(&finishes))));
            waiting.push(None);
        }
        for (message, command) in std::mem::take(&mut self.again) {
            commands.push(command);
            waiting.push(Some(message));
        }
        for message in messages {
            let Body::Ask(request) = &message.body else { continue };
            match self.decode(context, request) {
                Ok(command) => {
                    commands.push(command);
                    waiting.push(Some(message));
                }
                Err(response) => {
                    if self.lost(context) {
                        return Ok(());
                    }
                    response_without_damage(&response)?;
                    reply(context, &message, response);
                }
            }
        }
        if commands.is_empty() {
            return Ok(());
        }
        let now = self.host.clock(context);
        let Some(Running { batcher, .. }) = &self.running else { return Ok(()) };
        let result = batcher.run(&commands, &move || now);
        if self.lost(context) {
            return Ok(());
        }
        let verdicts = match result {
            Ok(verdicts) => verdicts,
            Err(error) => {
                self.host.note_failure(context, &error)?;
                for message in waiting.into_iter().flatten() {
                    reply(context, &message, HttpResponse { status: 503, ..HttpResponse::default() });
                }
                // The money has moved. It is booked later, after another request to the ledger.
                return Ok(());
            }
        };
        for ((message, verdict), command) in waiting.into_iter().zip(verdicts).zip(commands) {
            match (message, verdict) {
                (None, Ok(Answer::Finished(finished))) => self.finished(context, finished),
                (Some(message), Ok(Answer::Intended(intent))) => {
                    self.settle(context, *intent, Some(message));
                }
                (Some(message), Err(Refusal::InFlight { key, .. })) => {
                    context.marks.meet("bank.in_flight");
                    if let Some(open) = self.open.get_mut(&id_of(&key)) {
                        open.waiting.push((message, command));
                    } else {
                        reply(context, &message, HttpResponse { status: 503, ..HttpResponse::default() });
                    }
                }
                (Some(message), Ok(Answer::WithdrawalCreated)) => {
                    let Command::CreateWithdrawal(CreateWithdrawal { wopid, .. }) = command else { continue };
                    reply(context, &message, answer_of(&wopid.to_vec()));
                }
                (Some(message), verdict) => {
                    if let (Ok(Answer::Booked(_)), Command::Pay(_)) = (&verdict, &command) {
                        context.marks.meet("pay.repeated");
                    }
                    reply(context, &message, response(verdict));
                }
                (None, other) => {
                    return Err(Stop::wrong(format!("the books were closed with {other:?}")));
                }
            }
        }
        Ok(())
    }

    fn finished(&mut self, context: &mut Context, finished: Vec<Finished>) {
        for Finished { key, result } in finished {
            let Some(open) = self.open.remove(&id_of(&key)) else { continue };
            for asker in open.askers {
                reply(context, &asker, response(result.clone()));
            }
            if !open.waiting.is_empty() {
                self.again.extend(open.waiting);
                self.host.schedule(context);
            }
        }
    }

    /// Parses a request: a command, or an immediate answer.
    fn decode(&mut self, context: &mut Context, request: &HttpRequest) -> Result<Command, HttpResponse> {
        let malformed = || HttpResponse { status: 400, ..HttpResponse::default() };
        let path = request.url.strip_prefix(BANK_URL).ok_or_else(malformed)?;
        let body = request.body.as_deref().unwrap_or_default();
        if path.contains("/history/incoming?") {
            return Err(self.history(path, context.swarm.page_rows));
        }
        if path.ends_with("/transfer") {
            let transfer: TransferRequest = serde_json::from_slice(body).map_err(|_| malformed())?;
            return Ok(Command::Transfer(Transfer {
                request_uid: transfer.request_uid,
                debit_account: EXCHANGE_ACCOUNT.to_owned(),
                credit_account: account_of(&transfer.credit_account).ok_or_else(malformed)?,
                amount: transfer.amount.money,
                wtid: transfer.wtid,
                exchange_base_url: transfer.exchange_base_url,
            }));
        }
        if path == "pay" {
            let PayOrder { id, account, units, reserve_pub } =
                serde_json::from_slice(body).map_err(|_| malformed())?;
            let order = Command::Pay(Pay {
                id,
                debit_account: account.clone(),
                credit_account: EXCHANGE_ACCOUNT.to_owned(),
                amount: money(units),
                text: reserve_pub.to_string(),
                reserve_pub: Some(reserve_pub),
            });
            if context.has(Bug::PaysEveryCopy) && !self.seen.insert(id) {
                return Ok(Command::Pay(Pay {
                    id: context.random.bytes(),
                    debit_account: account,
                    credit_account: EXCHANGE_ACCOUNT.to_owned(),
                    amount: money(units),
                    text: String::new(),
                    reserve_pub: Some(EddsaPublicKey::from_bytes(context.random.bytes())),
                }));
            }
            return Ok(order);
        }
        let OperationOrder { wopid, account, units, reserve_pub } =
            serde_json::from_slice(body).map_err(|_| malformed())?;
        Ok(match reserve_pub {
            // Every copy creates its own operation, as in the real interface.
            None => Command::CreateWithdrawal(CreateWithdrawal {
                wopid: context.random.bytes(),
                account,
                amount: money(units),
            }),
            Some(reserve_pub) => Command::SelectWithdrawal(SelectWithdrawal {
                wopid,
                reserve_pub,
                exchange_account: EXCHANGE_ACCOUNT.to_owned(),
            }),
        })
    }

    /// A page of incoming transfers, of at most `rows` rows.
    fn history(&self, path: &str, rows: u64) -> HttpResponse {
        let Some(Running { store, .. }) = &self.running else {
            return HttpResponse { status: 503, ..HttpResponse::default() };
        };
        let number = |name: &str| {
            let (_, rest) = path.split_once(&format!("{name}="))?;
            rest.split('&').next()?.parse::<u64>().ok()
        };
        let (start, delta) = (number("start").unwrap_or(0), number("delta").unwrap_or(1));
        let account = EXCHANGE_ACCOUNT.to_owned();
        let from = Bound::Excluded(BankTransactions::history_value(&account, Some(start)));
        let to = Bound::Included(BankTransactions::history_value(&account, None));
        let limit = usize::try_from(delta.min(rows)).unwrap_or(1);
        let found: Result<Vec<Found<BankTransactions>>, _> =
            store.range_bytes(BankTransactions::INCOMING, from, to, limit, false);
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                return HttpResponse {
                    status: 503,
                    body: error.to_string().into(),
                    ..HttpResponse::default()
                };
            }
        };
        if found.is_empty() {
            return HttpResponse { status: 204, ..HttpResponse::default() };
        }
        let transaction = |found: Found<BankTransactions>| IncomingTransaction {
            row_id: found.row.row_id,
            date: found.row.time,
            amount: found.row.amount.of(currency()),
            credit_account: payto(&found.row.credit_account),
            debit_account: payto(&found.row.debit_account),
            reserve_pub: found.row.reserve_pub.expect("the index holds transactions with a reserve key"),
        };
        let incoming_transactions = found.into_iter().map(transaction).collect();
        answer_of(&IncomingHistory { incoming_transactions })
    }

    /// Answers a repeated request at once, for the checker.
    ///
    /// # Errors
    /// If the books do not answer it.
    pub fn answer(&mut self, context: &mut Context, request: &HttpRequest) -> Step<HttpResponse> {
        let command = match self.decode(context, request) {
            Ok(command) => command,
            Err(response) => return Ok(response),
        };
        let now = self.host.clock(context);
        let Some(Running { batcher, .. }) = &self.running else {
            return Err(Stop::wrong("the bank is down"));
        };
        let verdicts = batcher.run(&[command], &move || now);
        let verdict = verdicts.map_err(|error| Stop::wrong(error.to_string()))?.pop();
        Ok(response(verdict.expect("one verdict a command")))
    }
}

/// An answer with a body.
fn answer_of(body: &impl Serialize) -> HttpResponse {
    let body = serde_json::to_vec(body).expect("protocol bodies have a JSON form");
    HttpResponse { status: 200, body, ..HttpResponse::default() }
}

fn reply(context: &mut Context, message: &Message, response: HttpResponse) {
    context.send(message.reply(Body::Reply(Rc::new(response))));
}

/// The account that a payto URI of this bank names.
fn account_of(payto: &str) -> Option<String> {
    let path = payto.split('?').next()?;
    path.rsplit('/').next().map(str::to_owned)
}

fn response(verdict: Result<Answer, Refusal>) -> HttpResponse {
    match verdict {
        Ok(Answer::Booked(Booking { row_id, time })) => {
            answer_of(&TransactionResponse { row_id, timestamp: time })
        }
        Ok(Answer::Intended(_)) => HttpResponse { status: 202, ..HttpResponse::default() },
        Ok(_) => answer_of(&serde_json::json!({})),
        Err(refusal) => {
            let code = refusal.code();
            let body = batzen_protocol::ErrorBody::with(code, serde_json::json!({}));
            HttpResponse { status: code.http_status(), ..answer_of(&body) }
        }
    }
}
