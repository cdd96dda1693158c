//! The operators' actions on a hub, over its administrative interface. Every change takes two operators: one
//! proposes it, the other approves it.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use batzen_http::codec::frame_response;
use serde_json::{Value, json};

use crate::participants::MESSAGE_LIMITS;
use crate::participants::text::{self, TransferId};

/// Time that the switch may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause between two polls.
const PAUSE: Duration = Duration::from_millis(10);

/// Why an action failed.
#[derive(Debug)]
pub enum HubError {
    /// The switch cannot be reached, or does not speak HTTP.
    Io(io::Error),
    /// The switch refused.
    Refused {
        /// The request.
        request: String,
        /// The HTTP status.
        status: u16,
        /// The body.
        body: String,
    },
    /// A required part of an answer is missing.
    Unexpected(String),
}

impl std::fmt::Display for HubError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => write!(f, "the switch cannot be reached: {error}"),
            Self::Refused { request, status, body } => write!(f, "{request}: HTTP {status}: {body}"),
            Self::Unexpected(what) => write!(f, "unexpected answer: {what}"),
        }
    }
}

impl std::error::Error for HubError {}

impl From<io::Error> for HubError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Two operators with access to a switch.
#[derive(Clone, Debug)]
pub struct Hub {
    address: SocketAddr,
    tokens: [String; 2],
}

/// A participant to be created.
#[derive(Clone, Debug)]
pub struct Onboarding<'a> {
    /// Its name.
    pub name: &'a str,
    /// The currency of its accounts.
    pub currency: &'a str,
    /// The base URL of its callbacks.
    pub callback_url: &'a str,
    /// Its net debit cap, in hundredths.
    pub cap_cents: u64,
    /// Its funds at the settlement bank, in hundredths.
    pub funds_cents: u64,
}

/// One participant's transfers in a window. Amounts are ten-thousandths of the currency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WindowTotals {
    /// The participant's name.
    pub(crate) name: String,
    /// Transfers that it sent.
    pub(crate) sent_count: u64,
    /// Their sum.
    pub(crate) sent: u128,
    /// Transfers that it received.
    pub(crate) received_count: u64,
    /// Their sum.
    pub(crate) received: u128,
    /// The amount sent less the amount received.
    pub(crate) net: i128,
}

/// The amount that one participant pays (positive) or is paid in a settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NetAmount {
    /// The participant's name.
    pub(crate) name: String,
    /// The participant's id in the settlement.
    pub(crate) participant: Value,
    /// Its account's id in the settlement.
    pub(crate) account: Value,
    /// In ten-thousandths of the currency.
    pub(crate) net: i128,
}

/// The steps of a settlement, in order.
pub(crate) const SETTLEMENT_STEPS: [&str; 4] =
    ["PS_TRANSFERS_RECORDED", "PS_TRANSFERS_RESERVED", "PS_TRANSFERS_COMMITTED", "SETTLED"];

impl Hub {
    /// Operators with these tokens at the administrative interface of this address.
    #[must_use]
    pub const fn new(address: SocketAddr, tokens: [String; 2]) -> Self {
        Self { address, tokens }
    }

    /// Reads the tokens of two operators from a file, one a line.
    ///
    /// # Errors
    /// When the file cannot be read, or has other than two tokens.
    pub fn tokens(file: &Path) -> io::Result<[String; 2]> {
        let text = std::fs::read_to_string(file)?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let tokens: Vec<String> = lines.map(str::to_owned).collect();
        tokens.try_into().map_err(|_| io::Error::other("expected two lines, one token each"))
    }

    /// Sends one request of one operator (0 or 1); returns status and body.
    ///
    /// # Errors
    /// When the switch cannot be reached.
    pub fn call(
        &self,
        operator: usize,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Value), HubError> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.address,
            self.tokens[operator],
            body.len()
        );
        let mut stream = TcpStream::connect_timeout(&self.address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        stream.write_all(request.as_bytes())?;
        let mut received = Vec::new();
        let mut part = vec![0; 64 << 10];
        loop {
            let count = stream.read(&mut part)?;
            if count == 0 {
                return Err(HubError::Io(io::ErrorKind::UnexpectedEof.into()));
            }
            received.extend_from_slice(&part[..count]);
            let framed = frame_response(&received, &MESSAGE_LIMITS)
                .map_err(|error| HubError::Unexpected(error.to_string()))?;
            if let Some(framed) = framed {
                let body = match &received[framed.body] {
                    [] => Value::Null,
                    body => serde_json::from_slice(body)
                        .unwrap_or_else(|_| String::from_utf8_lossy(body).into_owned().into()),
                };
                return Ok((framed.status, body));
            }
        }
    }

    fn expect(
        &self,
        operator: usize,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Value), HubError> {
        let (status, answer) = self.call(operator, method, path, body)?;
        if (200..300).contains(&status) {
            return Ok((status, answer));
        }
        Err(HubError::Refused { request: format!("{method} {path}"), status, body: answer.to_string() })
    }

    /// Sends a query.
    ///
    /// # Errors
    /// When the switch cannot be reached or refuses.
    pub fn get(&self, path: &str) -> Result<Value, HubError> {
        Ok(self.expect(0, "GET", path, None)?.1)
    }

    /// Makes a change: the first operator proposes it, and the second approves it if the switch requires
    /// that. Returns the result of the change.
    pub(crate) fn change(&self, method: &str, path: &str, body: &Value) -> Result<Value, HubError> {
        let (status, answer) = self.expect(0, method, path, Some(body))?;
        let approval = answer.get("approvalId").filter(|_| status == 202);
        let Some(approval) = approval else { return Ok(answer) };
        let number = approval.as_str().map_or_else(|| approval.to_string(), str::to_owned);
        let decision = json!({"decision": "APPROVE"});
        Ok(self.expect(1, "POST", &format!("/approvals/{number}"), Some(&decision))?.1)
    }

    /// Creates the hub's accounts in a currency, and the model of deferred net settlement for it.
    ///
    /// # Errors
    /// When the switch cannot be reached or refuses.
    pub fn found(&self, currency: &str, model: &str) -> Result<(), HubError> {
        for kind in ["HUB_MULTILATERAL_SETTLEMENT", "HUB_RECONCILIATION"] {
            let body = json!({"currency": currency, "type": kind});
            self.change("POST", "/participants/Hub/accounts", &body)?;
        }
        let body = json!({
            "name": model,
            "settlementGranularity": "NET",
            "settlementInterchange": "MULTILATERAL",
            "settlementDelay": "DEFERRED",
            "currency": currency,
            "requireLiquidityCheck": true,
            "ledgerAccountType": "POSITION",
            "settlementAccountType": "SETTLEMENT",
            "autoPositionReset": true,
        });
        self.change("POST", "/settlementModels", &body)?;
        Ok(())
    }

    /// Creates a participant that can pay and be paid, or notes where one that exists is called back now.
    pub(crate) fn enrol(&self, participant: &Onboarding<'_>) -> Result<(), HubError> {
        let path = format!("/participants/{}", participant.name);
        match self.get(&path) {
            Ok(_) => self.call_back(participant),
            Err(HubError::Refused { status: 404, .. }) => self.onboard(participant),
            Err(error) => Err(error),
        }
    }

    fn call_back(&self, participant: &Onboarding<'_>) -> Result<(), HubError> {
        let path = format!("/participants/{}/endpoints", participant.name);
        let body = json!({"type": "FSPIOP_CALLBACK_URL", "value": participant.callback_url});
        self.change("POST", &path, &body).map(drop)
    }

    /// Creates a participant that can pay and be paid.
    ///
    /// # Errors
    /// When the switch cannot be reached or refuses.
    pub fn onboard(&self, participant: &Onboarding<'_>) -> Result<(), HubError> {
        let Onboarding { name, currency, cap_cents, funds_cents, .. } = *participant;
        self.change("POST", "/participants", &json!({"name": name, "currency": currency}))?;
        self.call_back(participant)?;
        let limit = json!({
            "currency": currency,
            "limit": {"type": "NET_DEBIT_CAP", "value": amount(cap_cents)},
            "initialPosition": "0",
        });
        self.change("POST", &format!("/participants/{name}/initialPositionAndLimits"), &limit)?;
        self.funds_in(name, currency, funds_cents)
    }

    /// Records that a participant has paid into its account at the settlement bank.
    pub(crate) fn funds_in(&self, name: &str, currency: &str, cents: u64) -> Result<(), HubError> {
        let text = amount(cents);
        self.funds(name, currency, "recordFundsIn", &text, "deposit at the settlement bank")?;
        Ok(())
    }

    /// Books what the settlement bank has moved for a settlement: a participant that owed money (a positive
    /// net, in ten-thousandths) has less there, one that was owed money has more.
    ///
    /// # Errors
    /// When the switch cannot be reached or refuses, and when the net is finer than hundredths.
    pub(crate) fn book_settled(&self, name: &str, currency: &str, net: i128) -> Result<(), HubError> {
        let cents = u64::try_from(net.unsigned_abs() / 100)
            .ok()
            .filter(|cents| u128::from(*cents) * 100 == net.unsigned_abs())
            .ok_or_else(|| HubError::Unexpected(format!("{net} ten-thousandths are no hundredths")))?;
        if cents == 0 {
            return Ok(());
        }
        let (text, reason) = (amount(cents), "moved by the settlement bank");
        if net < 0 {
            self.funds(name, currency, "recordFundsIn", &text, reason)?;
            return Ok(());
        }
        let path = self.funds(name, currency, "recordFundsOutPrepareReserve", &text, reason)?;
        let body = json!({"action": "recordFundsOutCommit", "reason": reason});
        self.change("PUT", &path, &body)?;
        Ok(())
    }

    /// Books a movement of funds. Returns its path.
    fn funds(
        &self,
        name: &str,
        currency: &str,
        action: &str,
        amount: &str,
        reason: &str,
    ) -> Result<String, HubError> {
        let (path, body) = self.funds_request(name, currency, action, amount, reason)?;
        self.change("POST", &path, &body)?;
        Ok(format!("{path}/transfers/{}", plain(&body["transferId"])))
    }

    /// Path and body of a new movement of funds.
    ///
    /// # Errors
    /// When the switch cannot be reached, or the participant has no account for it.
    pub fn funds_request(
        &self,
        name: &str,
        currency: &str,
        action: &str,
        amount: &str,
        reason: &str,
    ) -> Result<(String, Value), HubError> {
        let account = plain(&self.account(name, currency, "SETTLEMENT")?["id"]);
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let transfer = TransferId::from_random(u128::from_le_bytes(random));
        let body = json!({
            "transferId": transfer.to_string(),
            "externalReference": format!("settlement bank, account of {name}"),
            "action": action,
            "reason": reason,
            "amount": {"amount": amount, "currency": currency},
        });
        Ok((format!("/participants/{name}/accounts/{account}"), body))
    }

    /// A participant's account of this kind.
    fn account(&self, name: &str, currency: &str, kind: &str) -> Result<Value, HubError> {
        let accounts = self.get(&format!("/participants/{name}/accounts"))?;
        let is_meant =
            |account: &&Value| account["ledgerAccountType"] == kind && account["currency"] == currency;
        let found = accounts.as_array().and_then(|accounts| accounts.iter().find(is_meant));
        found
            .cloned()
            .ok_or_else(|| HubError::Unexpected(format!("{name} has no {kind} account: {accounts}")))
    }

    fn account_value(&self, name: &str, currency: &str, kind: &str) -> Result<i128, HubError> {
        let account = self.account(name, currency, kind)?;
        ten_thousandths(&account["value"])
            .ok_or_else(|| HubError::Unexpected(format!("an account without a value: {account}")))
    }

    /// The participant's current position in ten-thousandths; positive if it owes money.
    pub(crate) fn position(&self, name: &str, currency: &str) -> Result<i128, HubError> {
        self.account_value(name, currency, "POSITION")
    }

    /// A participant's funds at the settlement bank according to the switch's books, in ten-thousandths.
    ///
    /// # Errors
    /// When the switch cannot be reached, or its answer is not a list of accounts.
    pub fn liquidity(&self, name: &str, currency: &str) -> Result<i128, HubError> {
        // It is the hub's liability, shown as a credit.
        Ok(-self.account_value(name, currency, "SETTLEMENT")?)
    }

    /// The open window.
    ///
    /// # Errors
    /// When the switch cannot be reached, or there is not exactly one open window.
    pub(crate) fn open_window(&self) -> Result<Value, HubError> {
        let windows = self.get("/settlementWindows?state=OPEN")?;
        match windows.as_array().map(Vec::as_slice) {
            Some([window]) => Ok(window["settlementWindowId"].clone()),
            _ => Err(HubError::Unexpected(format!("one open window expected: {windows}"))),
        }
    }

    /// Closes the open window, which opens the next, and waits until its totals are final. Returns the closed
    /// one.
    ///
    /// # Errors
    /// When the switch cannot be reached or refuses, or the totals do not become final.
    pub(crate) fn close_window(&self, reason: &str) -> Result<Value, HubError> {
        let window = self.open_window()?;
        let body = json!({"state": "CLOSED", "reason": reason});
        let path = format!("/settlementWindows/{}", plain(&window));
        self.change("POST", &path, &body)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let state = self.get(&path)?["state"].clone();
            if state == "CLOSED" {
                return Ok(window);
            }
            if Instant::now() > deadline {
                return Err(HubError::Unexpected(format!("the window is {state}")));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The amounts that each participant has sent and received in a window.
    pub(crate) fn window_totals(&self, window: &Value) -> Result<Vec<WindowTotals>, HubError> {
        let answer = self.get(&format!("/settlementWindows/{}", plain(window)))?;
        let unexpected = || HubError::Unexpected(format!("content of a window expected: {answer}"));
        let content = answer["content"].as_array().ok_or_else(unexpected)?;
        content
            .iter()
            .map(|line| {
                let amount = |name: &str| ten_thousandths(&line[name]).ok_or_else(unexpected);
                let sum = |name: &str| amount(name)?.try_into().map_err(|_| unexpected());
                let count = |name: &str| line[name].as_u64().ok_or_else(unexpected);
                Ok(WindowTotals {
                    name: line["participant"].as_str().ok_or_else(unexpected)?.to_owned(),
                    sent_count: count("sentCount")?,
                    sent: sum("sent")?,
                    received_count: count("receivedCount")?,
                    received: sum("received")?,
                    net: amount("net")?,
                })
            })
            .collect()
    }

    /// Begins the settlement of a closed window. Returns its id.
    pub(crate) fn begin_settlement(&self, model: &str, window: &Value) -> Result<Value, HubError> {
        let body = json!({
            "settlementModel": model,
            "reason": "end of the window",
            "settlementWindows": [{"id": window}],
        });
        let settlement = self.change("POST", "/settlements", &body)?;
        Ok(settlement["id"].clone())
    }

    /// The amount that each participant pays or is paid.
    pub(crate) fn nets(&self, settlement: &Value) -> Result<Vec<NetAmount>, HubError> {
        let answer = self.get(&format!("/settlements/{}", plain(settlement)))?;
        let unexpected = || HubError::Unexpected(format!("nets of a settlement expected: {answer}"));
        let mut nets = Vec::new();
        for participant in answer["participants"].as_array().ok_or_else(unexpected)? {
            for account in participant["accounts"].as_array().ok_or_else(unexpected)? {
                let net =
                    ten_thousandths(&account["netSettlementAmount"]["amount"]).ok_or_else(unexpected)?;
                let name = participant.get("name").unwrap_or(&participant["id"]);
                nets.push(NetAmount {
                    name: plain(name),
                    participant: participant["id"].clone(),
                    account: account["id"].clone(),
                    net,
                });
            }
        }
        Ok(nets)
    }

    /// Advances all accounts of a settlement by one step.
    pub(crate) fn step_settlement(&self, settlement: &Value, step: &str) -> Result<Value, HubError> {
        let participants: Vec<Value> = self
            .nets(settlement)?
            .into_iter()
            .map(|net| {
                let account = json!({
                    "id": net.account,
                    "state": step,
                    "reason": "settlement",
                    "externalReference": format!("bank {}", plain(settlement)),
                });
                json!({"id": net.participant, "accounts": [account]})
            })
            .collect();
        let body = json!({"participants": participants});
        self.change("PUT", &format!("/settlements/{}", plain(settlement)), &body)
    }
}

/// Formats an amount of hundredths for the interface.
pub(crate) fn amount(cents: u64) -> String {
    let mut out = Vec::new();
    text::amount(&mut out, cents);
    String::from_utf8(out).expect("digits and a point")
}

/// An id for use in a path.
fn plain(id: &Value) -> String {
    id.as_str().map_or_else(|| id.to_string(), str::to_owned)
}

/// Parses an amount, given as text or number, into ten-thousandths.
#[must_use]
pub fn ten_thousandths(value: &Value) -> Option<i128> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let (sign, digits) = text.strip_prefix('-').map_or((1, text.as_str()), |digits| (-1, digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if fraction.len() > 4 || whole.is_empty() {
        return None;
    }
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    format!("{whole}{fraction:0<4}").parse::<i128>().ok().map(|number| sign * number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_operators_have_two_tokens() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tokens");
        std::fs::write(&file, "secret-token:one-and-secret\n\nsecret-token:two-and-secret\n").unwrap();
        assert_eq!(
            Hub::tokens(&file).unwrap(),
            ["secret-token:one-and-secret", "secret-token:two-and-secret"]
        );
        std::fs::write(&file, "secret-token:one-and-secret\n").unwrap();
        assert!(Hub::tokens(&file).is_err());
    }

    #[test]
    fn amounts_are_read_exactly() {
        for (value, expected) in [
            (json!("12.5"), Some(125_000)),
            (json!("-0.0001"), Some(-1)),
            (json!(7), Some(70_000)),
            (json!("0"), Some(0)),
            (json!("1.00001"), None),
            (json!("1e3"), None),
            (json!(""), None),
            (Value::Null, None),
        ] {
            assert_eq!(ten_thousandths(&value), expected, "{value}");
        }
        assert_eq!(amount(1_250), "12.5");
    }
}
