//! The page for customers: sign up, log in, view the account, pay, withdraw e-cash.
//!
//! The page is one static document at `/`; all its data comes as JSON from below `/web/`. A logged-in
//! customer has a cookie that scripts cannot read and other sites cannot use (`HttpOnly`, `SameSite=Strict`),
//! and sends a second secret with every request that changes something. Statements come from the ledger.

mod sessions;

use std::sync::Arc;
use std::time::Instant;

use batzen_http::{ErrorCode, Head, Request, Response, header};
use batzen_ledger::{AccountFilter, Transfer, TransferFlags, in_parts};
use batzen_protocol::api::bank::RegisterRequest;
use batzen_protocol::{Amount, Money};
use batzen_service::{Answer, Checked, Reach, StaticPage, endpoint, escape_html, qr_code};
use batzen_tables::bank::{
    AccountRow, BankAccounts, BankTransactions, EQUITY_ACCOUNT, Origin, TransactionKey, WithdrawalRow,
};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use super::access::withdraw_uri;
use super::{FAILURES, READ_MAX, SMALL_BODY_BYTES, Service, Settings, Table, body, refused, wrong_member};
use crate::MAX_BODY_BYTES;
use crate::chart::CODE_HEADROOM;
use crate::config::BankConfig;
use crate::names::NoAccount;
use crate::password::PASSWORD_BYTES_MAX;
use crate::rules::{CreateWithdrawal, Pay, Register};
use crate::settler::answered;
use crate::subject;
pub(super) use sessions::{Session, Sessions};

/// Transfers on one page of a statement.
const STATEMENT_ROWS: usize = 25;

/// The longest text of a payment, in bytes.
const TEXT_BYTES_MAX: usize = 200;

/// The header that the page sends with every request that changes something.
const CSRF_HEADER: &str = "x-csrf-token";

const COOKIE: &str = "batzen-bank-session";

/// The page itself, as configured.
pub(super) fn page(config: &BankConfig) -> StaticPage {
    let currency = escape_html(&config.currency.to_string());
    let bonus = match config.signup_bonus {
        bonus if bonus.is_zero() => String::new(),
        bonus => {
            let overdraft = match config.debt_limit {
                None => "",
                Some(limit) if limit.is_zero() => " and cannot be overdrawn",
                Some(limit) => &format!(" and can be overdrawn by {} {currency}", two_digits(limit)),
            };
            format!("<p>A new account starts with {} {currency}{overdraft}.</p>\n", two_digits(bonus))
        }
    };
    let notice = match config.play_money {
        true => {
            "<p class=\"notice\"><strong>Play money.</strong> This bank is for tests and demonstrations: its money is worth \
                 nothing.</p>\n"
        }
        false => "",
    };
    // The name comes last, so that nothing in it is taken for a placeholder.
    let html = include_str!("page.html")
        .replace("{BONUS}", &bonus)
        .replace("{NOTICE}", notice)
        .replace("{RULE}", NAME_RULE)
        .replace("{CURRENCY}", &currency)
        .replace("{NAME}", &escape_html(&config.name));
    StaticPage::new(&html, include_str!("page.css"), include_str!("page.js"))
}

/// The rule for account names, see `Addresses::is_new_name`.
const NAME_RULE: &str = "Letters, digits and most signs, without spaces and colons; no IBAN.";

/// An amount with at least two decimals.
fn two_digits(money: Money) -> String {
    let text = money.to_string();
    let (whole, decimals) = text.split_once('.').unwrap_or((&text, ""));
    format!("{whole}.{decimals:0<2}")
}

#[derive(Serialize)]
struct SessionInfo<'a> {
    account: &'a str,
    csrf: &'a str,
    currency: String,
}

#[derive(Serialize)]
struct AccountView {
    account: String,
    payto: String,
    currency: String,
    csrf: String,
    balance: String,
    is_negative: bool,
    reserved: String,
    transactions: Vec<LineView>,
    /// The start of the next page; `None` on the last one.
    older: Option<u64>,
}

#[derive(Serialize)]
struct LineView {
    time_s: u64,
    kind: &'static str,
    is_credit: bool,
    amount: String,
    other: Option<String>,
    text: Option<String>,
}

#[derive(Serialize)]
struct WithdrawalView {
    id: String,
    uri: String,
    /// A QR code of the URI: modules per side, and one path for all dark ones.
    qr_size: usize,
    qr_path: String,
}

#[derive(Serialize)]
struct WithdrawalState {
    amount: String,
    selected: bool,
    confirmed: bool,
    aborted: bool,
    exchange: Option<String>,
}

#[derive(Deserialize)]
struct WithdrawalWish {
    amount: Amount,
}

#[derive(Deserialize)]
struct PaymentWish {
    /// 16 random bytes from the page, so that a payment sent twice is made once.
    id: String,
    to: String,
    amount: Amount,
    text: String,
}

pub(super) fn routes(table: Table) -> Table {
    table
        .reaching(Reach::Page, |table| table.get("/", "other", endpoint!(home)))
        .post("/web/login", MAX_BODY_BYTES, "account", endpoint!(login))
        .post("/web/register", MAX_BODY_BYTES, "account", endpoint!(register))
        .post("/web/logout", SMALL_BODY_BYTES, "account", endpoint!(logout))
        .get("/web/account", "account", endpoint!(account))
        .post("/web/payments", MAX_BODY_BYTES, "transfer", endpoint!(pay))
        .post("/web/withdrawals", SMALL_BODY_BYTES, "withdrawal", endpoint!(withdraw))
        .get("/web/withdrawals/:wid", "withdrawal", endpoint!(withdrawal))
        .post("/web/withdrawals/:wid/confirm", SMALL_BODY_BYTES, "withdrawal", endpoint!(confirm))
        .post("/web/withdrawals/:wid/abort", SMALL_BODY_BYTES, "withdrawal", endpoint!(abort))
}

/// Browsers get a page, programs a few lines.
async fn home(bank: &Service, request: &Request) -> Response {
    if request.header(header::ACCEPT).is_some_and(|kinds| kinds.contains("text/html")) {
        return bank.page.response().with_header(header::VARY, "accept");
    }
    let Settings { base_url, config, .. } = &bank.settings;
    Response::text(
        200,
        format!(
            "A Batzen bank for {currency}.\n\n\
             Wire gateway:      {base_url}taler-wire-gateway/ACCOUNT/\n\
             Bank integration:  {base_url}taler-bank-integration/\n\
             Bank access:       {base_url}taler-bank-access/\n",
            currency = config.currency,
        ),
    )
}

impl Service {
    /// The session of the cookie, if it is still valid.
    fn session(&self, head: &Head) -> Option<(String, Session)> {
        let cookies = head.header(header::COOKIE)?;
        let tokens = cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
        let token = tokens.into_iter().find(|(name, _)| *name == COOKIE)?.1;
        let session = self.sessions.find(token, Instant::now())?;
        Some((token.to_owned(), session))
    }

    fn logged_in(&self, head: &Head) -> Checked<Session> {
        let nobody = || Response::error_status(ErrorCode::BANK_LOGIN_FAILED, 401, "");
        Ok(self.session(head).ok_or_else(nobody)?.1)
    }

    /// The same for requests that change something: only our own page knows the second secret.
    fn acts(&self, head: &Head) -> Checked<Session> {
        let session = self.logged_in(head)?;
        let shown = head.header(CSRF_HEADER).unwrap_or_default();
        let is_ours = bool::from(shown.as_bytes().ct_eq(session.csrf.as_bytes()));
        if is_ours { Ok(session) } else { Err(foreign()) }
    }

    fn cookie(&self, token: &str, seconds: u32) -> String {
        let base = &self.settings.base_url;
        let secure = if base.starts_with("https://") { "; Secure" } else { "" };
        let path = base.splitn(4, '/').nth(3).unwrap_or_default();
        format!("{COOKIE}={token}; Path=/{path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
    }

    fn begun(&self, account: &str) -> Response {
        let (token, session) = self.sessions.create(account, Instant::now());
        let currency = self.settings.config.currency.to_string();
        let info = SessionInfo { account, csrf: &session.csrf, currency };
        private(Response::json(200, &info)).with_header(header::SET_COOKIE, &self.cookie(&token, 12 * 3600))
    }

    /// A page of an account's transfers, latest first, before a given ledger timestamp.
    async fn statement(&self, ledger_id: u128, before: Option<u64>) -> Checked<(Vec<LineView>, Option<u64>)> {
        let mut filter = AccountFilter { reversed: true, ..AccountFilter::all(ledger_id) };
        filter.timestamp_max = before.map_or(0, |before| before.saturating_sub(1));
        if before.is_some_and(|before| before <= 1) {
            return Ok((Vec::new(), None));
        }
        // Reservations and releases move no money and are skipped, so a page may need a second query.
        filter.limit = u32::try_from(2 * STATEMENT_ROWS + 1).expect("a small constant");
        let ask = || in_parts(filter, |filter| self.ledger.get_account_transfers(filter));
        let late = |_| FAILURES.try_later("the ledger does not answer");
        let found = tokio::time::timeout(READ_MAX, answered(ask)).await.map_err(late)?;
        let is_whole = found.len() < 2 * STATEMENT_ROWS + 1;
        let last = found.last().map(|transfer| transfer.timestamp);
        let moves = |transfer: &Transfer| {
            !transfer.flags.intersects(TransferFlags::PENDING | TransferFlags::VOID_PENDING_TRANSFER)
                && transfer.code != CODE_HEADROOM
        };
        let mut shown: Vec<Transfer> = found.into_iter().filter(moves).collect();
        let is_cut = shown.len() > STATEMENT_ROWS;
        shown.truncate(STATEMENT_ROWS);
        let older = match is_cut {
            true => shown.last().map(|transfer| transfer.timestamp),
            false => last.filter(|_| !is_whole),
        };
        let others: Vec<u128> = shown.iter().map(|transfer| other_side(transfer, ledger_id)).collect();
        let payments: Vec<TransactionKey> = shown
            .iter()
            .map(|transfer| TransactionKey::new(Origin::Payment, &transfer.user_data_128.to_be_bytes()))
            .collect();
        let read = move |store: &batzen_store::Store| {
            let names = store.lookup_many::<BankAccounts>(BankAccounts::BY_LEDGER_ID, &others)?;
            let texts = store.get_many::<BankTransactions>(&payments)?;
            Ok((names, texts))
        };
        let (names, texts) = self.read(read).await?;
        let line = |((transfer, mut names), text): ((Transfer, Vec<_>), Option<_>)| {
            let is_payment = [Origin::Payment as u16, Origin::Incoming as u16].contains(&transfer.code);
            let found: Option<batzen_store::Found<BankAccounts>> = names.pop();
            let other = found.map(|found| found.key.name).filter(|name| name != EQUITY_ACCOUNT);
            let row: Option<batzen_store::Stored<batzen_tables::bank::TransactionRow>> = text;
            LineView {
                time_s: transfer.timestamp / batzen_ledger::NS_PER_S,
                kind: kind(transfer.code),
                is_credit: transfer.credit_account_id == ledger_id,
                amount: Money::from_units(transfer.amount).unwrap_or(Money::MAX).to_string(),
                other,
                text: row.filter(|_| is_payment).and_then(|stored| stored.row.text),
            }
        };
        Ok((shown.into_iter().zip(names).zip(texts).map(line).collect(), older))
    }

    async fn own_operation(&self, account: &str, text: &str) -> Checked<WithdrawalRow> {
        let (_, row) = self.operation(text).await?;
        let foreign = || Response::error(ErrorCode::BANK_TRANSACTION_NOT_FOUND, text);
        (row.account == account).then_some(row).ok_or_else(foreign)
    }
}

async fn login(bank: &Service, request: &Request) -> Answer {
    let RegisterRequest { username, password } = body(request)?;
    bank.check_password(request, &username, &password).await?;
    Ok(bank.begun(&username))
}

async fn register(bank: &Arc<Service>, request: &Request) -> Answer {
    let RegisterRequest { username: name, password } = body(request)?;
    if !bank.addresses.is_new_name(&name) {
        return Err(wrong_member::<RegisterRequest>("username"));
    }
    if password.is_empty() || password.len() > PASSWORD_BYTES_MAX {
        return Err(wrong_member::<RegisterRequest>("password"));
    }
    // A person who knows an account's password is logged in rather than refused, and must not bypass the
    // limit on guesses.
    let is_taken = |row: AccountRow| bank.settings.config.check_passwords || row.password_hash.is_some();
    if bank.find_account(&name).await?.is_some_and(is_taken) {
        return Err(Response::error(ErrorCode::BANK_REGISTER_CONFLICT, "username"));
    }
    let password_hash = bank.hash_password(name.clone(), password).await?;
    match bank.execute(Register { name: name.clone(), password_hash }).await? {
        Ok(()) => Ok(bank.begun(&name)),
        Err(refusal) => Err(refused(&refusal, "")),
    }
}

async fn logout(bank: &Service, request: &Request) -> Answer {
    bank.acts(request)?;
    if let Some((token, _)) = bank.session(request) {
        bank.sessions.remove(&token);
    }
    Ok(private(Response::empty(204)).with_header(header::SET_COOKIE, &bank.cookie("", 0)))
}

async fn account(bank: &Service, request: &Request) -> Answer {
    // Asking whether somebody is logged in is not an error.
    let Some((_, Session { account: name, csrf })) = bank.session(request) else {
        return Ok(private(Response::empty(204)));
    };
    let before = request.query_with("before", |text| text.parse::<u64>().ok())?;
    let account = bank.account(&name).await?;
    let totals = bank.balances(&account).await?;
    let (is_negative, balance) = totals.balance();
    let (transactions, older) = match account.is_opened {
        true => bank.statement(account.ledger_id, before).await?,
        false => (Vec::new(), None),
    };
    let reserved = Money::from_units(totals.reserved).unwrap_or(Money::MAX);
    let currency = bank.settings.config.currency.to_string();
    let payto = bank.payto(&name);
    Ok(private(Response::json(
        200,
        &AccountView {
            account: name,
            payto,
            currency,
            csrf,
            balance: balance.to_string(),
            is_negative,
            reserved: reserved.to_string(),
            transactions,
            older,
        },
    )))
}

async fn withdraw(bank: &Arc<Service>, request: &Request) -> Answer {
    let Session { account, .. } = bank.acts(request)?;
    let WithdrawalWish { amount } = body(request)?;
    let amount = bank.money::<WithdrawalWish>("amount", &amount)?;
    if amount.is_zero() {
        return Err(wrong_member::<WithdrawalWish>("amount"));
    }
    let mut wopid = [0; 32];
    batzen_crypto::fill_random(&mut wopid);
    let created = bank.execute(CreateWithdrawal { wopid, account, amount }).await?;
    created.map_err(|refusal| refused(&refusal, ""))?;
    let id = batzen_crypto::base32::encode(&wopid);
    let uri = withdraw_uri(&bank.settings.base_url, &id);
    let (qr_size, qr_path) = qr_code(&uri).expect("a URI is far smaller than the largest code");
    Ok(private(Response::json(200, &WithdrawalView { id, uri, qr_size, qr_path })))
}

async fn withdrawal(bank: &Service, request: &Request) -> Answer {
    let text = request.param("wid");
    let Session { account, .. } = bank.logged_in(request)?;
    let row = bank.own_operation(&account, text).await?;
    Ok(private(Response::json(
        200,
        &WithdrawalState {
            amount: row.amount.to_string(),
            selected: row.reserve_pub.is_some(),
            confirmed: row.row_id.is_some(),
            aborted: row.aborted,
            exchange: row.exchange_account,
        },
    )))
}

async fn confirm(bank: &Arc<Service>, request: &Request) -> Answer {
    let text = request.param("wid");
    let Session { account, .. } = bank.acts(request)?;
    bank.confirm(&account, text).await.map(private)
}

async fn abort(bank: &Arc<Service>, request: &Request) -> Answer {
    let text = request.param("wid");
    let Session { account, .. } = bank.acts(request)?;
    bank.abort(&account, text).await.map(private)
}

async fn pay(bank: &Arc<Service>, request: &Request) -> Answer {
    let Session { account: debit_account, .. } = bank.acts(request)?;
    let PaymentWish { id, to, amount, text } = body(request)?;
    let wrong = wrong_member::<PaymentWish>;
    let id = batzen_crypto::base32::decode_array::<16>(&id).map_err(|_| wrong("id"))?;
    let amount = bank.money::<PaymentWish>("amount", &amount)?;
    if amount.is_zero() {
        return Err(wrong("amount"));
    }
    let credit_account = bank.addresses.account_named(&to).map_err(|no_account| match no_account {
        NoAccount::Malformed => wrong("to"),
        NoAccount::OtherBank => bank.other_bank(),
    })?;
    // Pasted texts have line breaks and tabs.
    let text = text.replace(['\r', '\n', '\t'], " ");
    if text.len() > TEXT_BYTES_MAX || text.chars().any(char::is_control) {
        return Err(wrong("text"));
    }
    // A reserve key in the text makes it a transfer to an exchange, in the form that wallets ask for.
    let reserve_pub = subject::reserve_pub(&text);
    let command = Pay { id, debit_account, credit_account, amount, text, reserve_pub };
    bank.execute(command).await?.map_err(|refusal| refused(&refusal, ""))?;
    Ok(private(Response::empty(204)))
}

/// The account that a transfer came from or went to.
fn other_side(transfer: &Transfer, ledger_id: u128) -> u128 {
    match transfer.credit_account_id == ledger_id {
        true => transfer.debit_account_id,
        false => transfer.credit_account_id,
    }
}

/// The kind of movement for a ledger code, as the page names it.
fn kind(code: u16) -> &'static str {
    let is = |origin: Origin| code == origin as u16;
    match code {
        _ if is(Origin::Transfer) => "transfer",
        _ if is(Origin::Withdrawal) => "withdrawal",
        _ if is(Origin::Bonus) => "bonus",
        _ => "payment",
    }
}

fn foreign() -> Response {
    Response::error(ErrorCode::BANK_REJECT_NO_RIGHTS, "the request must come from the bank's own page")
}

/// Forbids caches to keep a customer's answers.
fn private(response: Response) -> Response {
    response.with_header(header::CACHE_CONTROL, "no-store")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_and_loads_nothing() {
        let mut config = BankConfig::new("KUDOS".parse().unwrap());
        config.name = "Bank <of> \"Joe\"".to_owned();
        config.signup_bonus = "KUDOS:100.5".parse::<Amount>().unwrap().money;
        let response = page(&config).response();
        let page = std::str::from_utf8(&response.body).unwrap();
        assert!(page.contains(include_str!("page.js")) && !page.contains("/*S"));
        for outside in ["http://", "https://", " src=", "@import", "url("] {
            let found = page.replace("http://www.w3.org/2000/svg", "").contains(outside);
            assert!(!found, "the page names {outside}");
        }
        assert!(page.contains("<h1>Bank &lt;of&gt; &quot;Joe&quot;</h1>"));
        assert!(page.contains("<p>A new account starts with 100.50 KUDOS.</p>"));
        for (limit, words) in [("0", "cannot be overdrawn"), ("2.5", "can be overdrawn by 2.50 KUDOS")] {
            let config = BankConfig { debt_limit: Some(limit.parse().unwrap()), ..config.clone() };
            let response = self::page(&config).response();
            let expected = format!("<p>A new account starts with 100.50 KUDOS and {words}.</p>");
            assert!(std::str::from_utf8(&response.body).unwrap().contains(&expected), "{limit}");
        }
        assert!(page.contains("Play money") && !page.contains("{N") && !page.contains("{C"));
        config.play_money = false;
        assert!(!std::str::from_utf8(&self::page(&config).response().body).unwrap().contains("Play money"));
        // Things that the policy would forbid, or that would turn text into markup.
        for forbidden in ["style=\"", "onclick", "innerHTML", "insertAdjacentHTML"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        let policy = response.header(&header::CONTENT_SECURITY_POLICY).unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    }
}
