//! Walks a scenario: sends every recorded request to our exchange, in order, and compares the answers.

use std::collections::HashMap;
use std::time::Duration as StdDuration;

use batzen_crypto::{EddsaPrivateKey, EddsaPublicKey, HashCode};
use batzen_http::client::Method;
use batzen_protocol::api::exchange::{BlindSignature, KeysResponse};
use batzen_protocol::{Amount, Timestamp};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use crate::api::wallet::Coin;
use crate::api::world::Denom;
use crate::replay::cast::Cast;
use crate::replay::coins::{self, Purse, Refreshing, Role};
use crate::replay::compare;
use crate::replay::recording::{Line, Scenario};
use crate::replay::rules::{self, Reason, Right};
use crate::replay::side::Side;
use crate::replay::stage::{self, Stage};

/// An answer to a long poll that takes longer than this waits for a later request, unless the poll is short.
const AT_ONCE: StdDuration = StdDuration::from_millis(100);
/// The longest poll that ends before the next request is sent.
const SHORT_POLL_MS: u64 = 1_000;
/// Time that the last long polls may take after all requests were sent.
const LAST_ANSWERS: StdDuration = StdDuration::from_secs(15);

/// The result of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    /// Our answer has the same status, code, members and determined values.
    Same,
    /// The protocol decides that the recorded answer is wrong, or allows another; ours is that.
    Decided,
    LeftOut(Reason),
    Different(String),
}

/// The answer of our exchange.
struct Answer {
    status: u16,
    etag: Option<String>,
    body: Vec<u8>,
}

/// Sends a request that is not for a path, as `OPTIONS *`.
async fn raw(port: u16, method: &str, target: &str) -> Answer {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Answer { status: status.expect("a status"), etag: None, body: body.as_bytes().to_vec() }
}

/// A request whose answer is still to come.
struct Pending {
    index: usize,
    answer: JoinHandle<Answer>,
}

pub(super) struct Player {
    pub lines: Vec<Line>,
    pub name: String,
    pub recorded: Side,
    pub ours: Side,
    pub cast: Cast,
    pub stage: Stage,
    /// Our denominations by the hashes of recorded ones.
    pub denoms: HashMap<String, Denom>,
    pub known: Vec<Role>,
    pub purse: Purse,
    /// The recorded coins by the planchets that they were made of, as far as recoups tell.
    pub origins: HashMap<HashCode, Role>,
    /// The denominations of recorded refreshes by their commitments.
    pub reveals: HashMap<String, Vec<String>>,
    /// Bank transfers that are not booked yet.
    credits: Vec<Incoming>,
    pending: Vec<Pending>,
    fates: Vec<Option<Fate>>,
}

/// A bank transfer to a reserve.
#[derive(Clone, serde::Deserialize)]
struct Incoming {
    row_id: u64,
    amount: Amount,
    debit_account: String,
    reserve_pub: String,
}

/// The transfers that the recorded exchange saw at its bank, and those that were ordered there.
fn incoming(scenario: &Scenario) -> Vec<Incoming> {
    let mut found: Vec<Incoming> = Vec::new();
    for line in scenario.lines.iter().filter(|line| line.server == "bank" && line.is_ok()) {
        let (request, answer) = (&line.request.body, &line.response.body);
        let mut rows: Vec<Value> =
            answer.get("incoming_transactions").and_then(Value::as_array).cloned().unwrap_or_default();
        if line.request.path.ends_with("/admin/add-incoming") {
            let mut row = request.clone();
            row["row_id"] = answer["row_id"].clone();
            rows.push(row);
        }
        for row in rows {
            let row: Incoming = serde_json::from_value(row).unwrap();
            if found.iter().all(|other| other.row_id != row.row_id) {
                found.push(row);
            }
        }
    }
    found.sort_by_key(|row| row.row_id);
    found
}

/// The time that an answer tells. That of a long poll is the time of a later request.
fn moment(line: &Line) -> Option<Timestamp> {
    let body = &line.response.body;
    let is_poll = line.request.argument("timeout_ms").is_some();
    let names = ["exchange_timestamp", "timestamp", "now", "deposit_timestamp"];
    let times = names.iter().filter(|_| !is_poll).filter_map(|name| body.get(*name));
    times.filter_map(|time| serde_json::from_value(time.clone()).ok()).max()
}

impl Player {
    pub(super) async fn new(scenario: Scenario, master: EddsaPrivateKey) -> Self {
        let recorded = stage::recorded_side(&scenario);
        let known = coins::known_coins(&scenario, &recorded);
        let origins = coins::origins(&scenario, &recorded);
        let mut cast = Cast::of(&scenario, |text| known.iter().any(|role| role.coin_pub == text));
        let stage = Stage::start(&scenario, &recorded).await;
        let mut ours = Side::new(recorded.base_url.clone(), recorded.master_pub, recorded.history_fee);
        ours.add_future_keys(&stage.future);
        for (recorded, ours) in stage::pairs(&recorded, &ours) {
            cast.add(&recorded.h_denom_pub.to_string(), &ours.h_denom_pub.to_string());
        }
        for (recorded, ours) in stage::signing_pairs(&recorded, &ours) {
            cast.add(&recorded.to_string(), &ours.to_string());
        }
        assert_eq!(master.public_key(), recorded.master_pub, "the recordings' master key");
        cast.signer(&recorded.master_pub.to_string(), master);
        let mut reveals = HashMap::new();
        for line in scenario.requests() {
            if let ["refreshes", rc, "reveal"] = line.request.segments().as_slice()
                && let Some(denoms) = line.request.body.get("new_denoms_h")
                && let Ok(denoms) = serde_json::from_value(denoms.clone())
            {
                reveals.insert((*rc).to_owned(), denoms);
            }
        }
        let credits = incoming(&scenario);
        let fates = vec![None; scenario.lines.len()];
        let Scenario { name, lines } = scenario;
        let (denoms, purse, pending) = Default::default();
        Self {
            lines,
            name,
            recorded,
            ours,
            cast,
            stage,
            denoms,
            known,
            purse,
            origins,
            reveals,
            credits,
            pending,
            fates,
        }
    }

    /// Walks all lines. The result has one fate for each.
    /// Plays all lines, and looks at the stage at the end.
    pub(super) async fn play(mut self, look: impl AsyncFnOnce(&Stage)) -> Vec<(Line, Fate)> {
        let order = self.order();
        for index in order {
            let line = self.lines[index].clone();
            self.before(&line).await;
            match rules::left_out(&self.name, &self.recorded, &line) {
                Some(reason) => self.fates[index] = Some(Fate::LeftOut(reason)),
                None => self.send(index, &line).await,
            }
            self.collect(StdDuration::ZERO).await;
        }
        self.collect(LAST_ANSWERS).await;
        look(&self.stage).await;
        let fates = self.fates.into_iter().map(|fate| fate.expect("every line has a fate"));
        self.lines.into_iter().zip(fates).collect()
    }

    /// The order of the lines: as recorded, except that requests for keys which waited until the first keys
    /// were signed come after the request that brought the signatures.
    fn order(&self) -> Vec<usize> {
        let is_signing = |line: &Line| {
            line.is_ok() && line.request.path == "/management/keys" && line.request.method == "POST"
        };
        let signed = self.lines.iter().position(is_signing);
        let waits = |index: usize| {
            let line = &self.lines[index];
            signed.is_some_and(|signed| index < signed)
                && line.server == "exchange"
                && line.request.path == "/keys"
        };
        let mut order = Vec::new();
        for index in 0..self.lines.len() {
            if !waits(index) {
                order.push(index);
            }
            if Some(index) == signed {
                order.extend((0..index).filter(|index| waits(*index)));
            }
        }
        order
    }

    /// Brings about what happened before a request.
    async fn before(&mut self, line: &Line) {
        let is_transfer = line.server == "bank" && line.request.path.ends_with("/transfer");
        let decision = if is_transfer { self.decision(line) } else { None };
        if let Some(time) = decision.or_else(|| moment(line)) {
            self.stage.advance(time).await;
        }
        if is_transfer {
            self.stage.pay_out().await;
        }
        self.book(line).await;
        self.fill_gaps(line).await;
    }

    /// When the exchange decided on a transfer, if that can be seen later.
    fn decision(&self, transfer: &Line) -> Option<Timestamp> {
        let wtid = transfer.request.body.get("wtid")?;
        let answers = self.lines.iter().map(|line| &line.response.body);
        let mut tracked = answers.filter(|body| body.get("wtid") == Some(wtid));
        serde_json::from_value(tracked.next()?.get("execution_time")?.clone()).ok()
    }

    /// Books bank transfers when they are ordered, or just before the exchange is asked about their reserve.
    async fn book(&mut self, line: &Line) {
        let row = if line.server == "bank" && line.request.path.ends_with("/admin/add-incoming") {
            line.response.body.get("row_id").and_then(Value::as_u64)
        } else {
            None
        };
        let asked = match line.request.segments().as_slice() {
            ["reserves", reserve, ..] if line.server == "exchange" && line.is_ok() => {
                Some((*reserve).to_owned())
            }
            _ => None,
        };
        let is_due =
            |credit: &Incoming| row == Some(credit.row_id) || asked.as_deref() == Some(&credit.reserve_pub);
        let (due, later) = self.credits.drain(..).partition(is_due);
        self.credits = later;
        let due: Vec<Incoming> = due;
        for credit in due {
            let reserve_pub: EddsaPublicKey = self.cast.text(&credit.reserve_pub).parse().unwrap();
            self.stage.credit(credit.row_id, reserve_pub, credit.amount.money, &credit.debit_account).await;
        }
    }

    async fn send(&mut self, index: usize, line: &Line) {
        let ours = self.rewrite(line).await;
        let (client, url) = (self.stage.client.clone(), self.stage.url(&ours.path));
        let (method, target) = (line.request.method.clone(), ours.path.clone());
        let port = self.stage.port();
        let header = |name: &&'static str| {
            let value = line.request.headers.get(*name)?.as_str()?;
            Some((*name, self.cast.text(value)))
        };
        let headers: Vec<_> =
            ["accept", "accept-language", "if-none-match"].iter().filter_map(header).collect();
        let query = line.request.path.split_once('?').map_or("", |(_, query)| query);
        let cookie = self.cast.login(query).map(|(_, cookie)| cookie.clone());
        let body = ours.body.clone();
        let mut answer = tokio::spawn(async move {
            if !target.starts_with('/') {
                return raw(port, &method, &target).await;
            }
            let mut call = client.call(method.parse::<Method>().unwrap(), url);
            for (name, value) in &headers {
                call = call.header(name, value);
            }
            if let Some(cookie) = &cookie {
                call = call.header("cookie", cookie);
            }
            call = match &body {
                Value::Null => call,
                Value::String(text) => call.body("application/json", text.clone()),
                body => call.json(body),
            };
            let reply = call.send().await.unwrap();
            let etag = reply.header("etag").map(str::to_owned);
            Answer { status: reply.status, etag, body: reply.body.to_vec() }
        });
        let timeout_ms = line.request.argument("timeout_ms").and_then(|timeout| timeout.parse().ok());
        let is_long = timeout_ms.is_some_and(|timeout_ms: u64| timeout_ms > SHORT_POLL_MS);
        let patience = if is_long { AT_ONCE } else { LAST_ANSWERS };
        let answer = match tokio::time::timeout(patience, &mut answer).await {
            Ok(answer) => answer.expect("our exchange answers"),
            Err(_) => {
                self.pending.push(Pending { index, answer });
                return;
            }
        };
        if (200..300).contains(&answer.status) {
            let recorded = line.request.segments();
            let path = ours.path.clone();
            let segments: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
            if line.is_ok() {
                self.recorded.learn(&recorded, &line.request.body);
                self.ours.learn(&segments, &ours.body);
            }
            self.after(line, &answer).await;
        }
        self.judge(index, &answer);
    }

    /// Takes the coins out of an answer that recoups name later.
    fn issued(&mut self, line: &Line, answer: &Answer) {
        let segments = line.request.segments();
        let hashes = coins::planchet_hashes(&segments, &line.request.body);
        if !hashes.iter().any(|hash| self.origins.contains_key(hash)) {
            return;
        }
        let body = body_of(answer);
        let issued: Vec<Coin> = match segments.as_slice() {
            ["refreshes", rc, "reveal"] => {
                let Some(Refreshing { refresh, noreveal_index: Some(index) }) = self.purse.refreshes.get(*rc)
                else {
                    return;
                };
                refresh.finish(*index, &serde_json::from_value(body).unwrap())
            }
            _ => {
                let signatures: Vec<BlindSignature> = match body.get("ev_sigs") {
                    Some(list) => serde_json::from_value(list.clone()).unwrap(),
                    None => vec![serde_json::from_value(body).unwrap()],
                };
                let planchets = hashes.iter().map(|hash| &self.purse.planchets[hash]);
                planchets.zip(&signatures).map(|(planchet, signed)| planchet.finish(&signed.ev_sig)).collect()
            }
        };
        for (hash, coin) in hashes.iter().zip(issued) {
            if let Some(role) = self.origins.get(hash) {
                self.play_coin(role.clone(), coin);
            }
        }
    }

    /// Lets a coin of ours play a recorded one.
    pub(super) fn play_coin(&mut self, role: Role, coin: Coin) {
        self.cast.signer(&role.coin_pub, coin.secrets.coin_priv.clone());
        if let (Some(recorded), Some(ours)) = (role.h_age, coin.h_age()) {
            self.cast.add(&recorded.to_string(), &ours.to_string());
        }
        self.purse.coins.insert(role, coin);
    }

    /// Takes from an accepted answer what later requests need.
    async fn after(&mut self, line: &Line, answer: &Answer) {
        self.issued(line, answer);
        match line.request.segments().as_slice() {
            ["management", "keys"] if line.request.method == "POST" => {
                self.stage.running.app().keeper().round().await.unwrap();
                let url = self.stage.url("/keys");
                let keys: KeysResponse = self.stage.client.get(url).send().await.unwrap().ok().unwrap();
                let published: HashMap<String, Denom> = keys
                    .denoms
                    .iter()
                    .map(|terms| {
                        let h = terms.denom_pub.h_denom_pub();
                        (h.to_string(), Denom { h, terms: terms.clone() })
                    })
                    .collect();
                for recorded in self.recorded.denominations.keys() {
                    let recorded = recorded.to_string();
                    if let Some(denom) = self.cast.get(&recorded).and_then(|h| published.get(h)) {
                        self.denoms.insert(recorded, denom.clone());
                    }
                }
            }
            // A user's browser opens the page.
            ["kyc-check", _, account, _] if answer.status == 202 => {
                let body = body_of(answer);
                let (_, page) =
                    body["kyc_url"].as_str().unwrap().split_once("/kyc-login/").expect("our page");
                let url = self.stage.url(&format!("/kyc-login/{page}"));
                let sent = self.stage.client.get(url).send().await.unwrap();
                let cookie =
                    sent.header("set-cookie").expect("a cookie").split(';').next().unwrap_or_default();
                let page = std::str::from_utf8(&sent.body).unwrap();
                let (_, rest) = page.split_once("state=").expect("a state");
                let state = rest.split('"').next().unwrap_or_default();
                self.cast.add_login(account, state, cookie);
            }
            ["coins", _, "melt"] => {
                let rc = line.request.body.get("rc").and_then(Value::as_str).unwrap_or_default();
                if let Some(refreshing) = self.purse.refreshes.get_mut(rc) {
                    let body = body_of(answer);
                    let index = body["noreveal_index"].as_u64().expect("an index");
                    refreshing.noreveal_index = Some(u32::try_from(index).unwrap());
                }
            }
            _ => {}
        }
    }

    /// Judges the long polls that have been answered within this time.
    async fn collect(&mut self, patience: StdDuration) {
        let end = tokio::time::Instant::now() + patience;
        for Pending { index, mut answer } in std::mem::take(&mut self.pending) {
            if answer.is_finished() || !patience.is_zero() {
                match tokio::time::timeout_at(end, &mut answer).await {
                    Ok(answer) => self.judge(index, &answer.unwrap()),
                    Err(_) => {
                        answer.abort();
                        self.fates[index] = Some(Fate::Different("no answer".to_owned()));
                    }
                }
            } else {
                self.pending.push(Pending { index, answer });
            }
        }
    }

    fn judge(&mut self, index: usize, answer: &Answer) {
        let line = self.lines[index].clone();
        let body = body_of(answer);
        self.cast.learn(&line.response.body, &body);
        if let (Some(recorded), Some(ours)) =
            (line.response.headers.get("etag").and_then(Value::as_str), answer.etag.as_deref())
        {
            self.cast.add(recorded, ours);
        }
        let decided = rules::decided(&self.name, &self.lines, &line);
        let fate = if decided.is_some() { Fate::Decided } else { Fate::Same };
        let difference = match decided.unwrap_or(Right::Answer(line.response)) {
            Right::Answer(expected) if answer.status == expected.status => {
                compare::difference(&self.cast, &expected.body, &body)
            }
            Right::Refusal(status, code) if answer.status == status && body["code"] == code => None,
            _ => Some(format!("status {}: {}", answer.status, String::from_utf8_lossy(&answer.body))),
        };
        self.fates[index] = Some(difference.map_or(fate, Fate::Different));
    }
}

/// A body as the recordings show it.
fn body_of(answer: &Answer) -> Value {
    if answer.body.is_empty() {
        return Value::Null;
    }
    match serde_json::from_slice(&answer.body) {
        Ok(body @ (Value::Object(_) | Value::Array(_))) => body,
        _ => match std::str::from_utf8(&answer.body) {
            Ok(text) => Value::from(text),
            Err(_) => json!({ "$base64": "" }),
        },
    }
}
