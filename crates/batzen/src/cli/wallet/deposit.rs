//! `batzen wallet deposit`.

use anyhow::bail;
use batzen_protocol::limits::DEPOSIT_COINS_MAX;
use batzen_wallet::core::payment;
use batzen_wallet::core::views::{self, describe_fees};
use batzen_wallet::{
    Amount, DepositAmount, Exchange, Left, PaymentReceipt, Transaction, Wallet, WalletError,
};
use serde_json::json;

use super::args::DepositArgs;
use super::errors::exit_code;
use super::inputs;
use super::money::available;
use super::output::Output;

/// The most rounds of requests to one exchange. Each round deposits at least one coin.
const ROUNDS_MAX: usize = 64;

pub(super) async fn deposit(
    wallet: &Wallet,
    args: &DepositArgs,
    yes: bool,
    output: &Output,
) -> anyhow::Result<u8> {
    let payto = inputs::payto(&args.payto)?;
    match inputs::deposit_amount(&args.amount)? {
        DepositAmount::Exact(amount) => {
            let exchange = choose_exchange(wallet, args.exchange.as_deref(), amount).await?;
            deposit_exactly(wallet, &exchange, amount, payto, yes, output).await
        }
        DepositAmount::All => deposit_all(wallet, args.exchange.as_deref(), payto, yes, output).await,
    }
}

async fn deposit_exactly(
    wallet: &Wallet,
    exchange: &Exchange,
    amount: Amount,
    payto: &str,
    yes: bool,
    output: &Output,
) -> anyhow::Result<u8> {
    payment::check_account(exchange, payto).map_err(WalletError::from)?;
    let (now, amount) = (wallet.now(), DepositAmount::Exact(amount));
    let plan = wallet
        .with_state(|state| payment::preview_deposit(state, &exchange.base_url, amount, now))
        .map_err(WalletError::from)?;
    let credited = exchange.amount(plan.total.checked_sub(plan.fees)?);
    let mut words = format!(
        "{credited} go to {payto}; on top {}",
        describe_fees(&[
            ("deposit", exchange.amount(plan.fees)),
            ("change", exchange.amount(plan.change_cost))
        ]),
    );
    words.push_str(&wire_fee_words(exchange, payto, wallet));
    output.note(&words);
    output.confirm("Deposit?", yes)?;
    let depositing =
        async { (wallet.deposit(&exchange.base_url, amount, payto).await, wallet.run_pending().await) };
    let (receipt, report) = output.during("Depositing", depositing).await;
    let (receipt, report) = (receipt?, report?);
    let line = wallet.transaction(receipt.operation)?;
    let mut text = line.description.clone();
    text.push_str(&available(wallet, output)?);
    if !report.pending.is_empty() {
        text.push_str("\nChange is still being made. Continue with `batzen wallet run`.");
    }
    output.result(&json!({ "transaction": line, "receipt": receipt, "pending": report.pending }), &text)?;
    Ok(0)
}

fn wire_fee_words(exchange: &Exchange, payto: &str, wallet: &Wallet) -> String {
    match exchange.wire_fee(payto, wallet.now()).filter(|fee| !fee.is_zero()) {
        Some(fee) => format!("; the exchange keeps a wire fee of {fee} from each transfer"),
        None => String::new(),
    }
}

/// The deposits made so far by `deposit all`.
#[derive(Default)]
struct Deposits {
    transactions: Vec<Transaction>,
    receipts: Vec<PaymentReceipt>,
    failure: Option<WalletError>,
}

/// Deposits all coins of the named exchange, or of all exchanges, in as many requests as necessary.
async fn deposit_all(
    wallet: &Wallet,
    named: Option<&str>,
    payto: &str,
    yes: bool,
    output: &Output,
) -> anyhow::Result<u8> {
    wallet.hasten_change().await?;
    let exchanges = paying_exchanges(wallet, named, payto).await?;
    for exchange in exchanges.iter().filter(|exchange| !is_spent(wallet, exchange)) {
        output.note(&preview_all(wallet, exchange, payto)?);
    }
    if exchanges.iter().all(|exchange| is_spent(wallet, exchange)) {
        let left = left_words(&all_left(wallet, &exchanges)?);
        bail!(
            "there are no coins to deposit{}",
            if left.is_empty() { String::new() } else { format!("\n{left}") }
        );
    }
    output.confirm("Deposit?", yes)?;
    let bar = output.progress("Depositing");
    let mut deposits = Deposits::default();
    for exchange in &exchanges {
        deposit_exchange(wallet, exchange, payto, &mut deposits).await?;
    }
    let report = wallet.run_pending().await;
    bar.finish_and_clear();
    let report = report?;
    let left = all_left(wallet, &exchanges)?;
    let mut text: String =
        deposits.transactions.iter().map(|line| format!("{}\n", line.description)).collect();
    text.push_str(&left_words(&left));
    if left.is_empty() {
        text.push_str("Nothing is left in the wallet.");
    }
    if let Some(error) = &deposits.failure {
        text.push_str(&format!("\nNot everything was deposited: {error}"));
    }
    let mut data = json!({
        "transactions": deposits.transactions,
        "receipts": deposits.receipts,
        "left": left,
        "pending": report.pending,
    });
    if let Some(error) = &deposits.failure {
        data["error"] = error.to_string().into();
    }
    output.result(&data, &text)?;
    Ok(match deposits.failure {
        Some(error) => exit_code(&error.into()),
        None => 0,
    })
}

/// The exchanges of the wallet that can pay to the account: the named one, or all.
async fn paying_exchanges(
    wallet: &Wallet,
    named: Option<&str>,
    payto: &str,
) -> anyhow::Result<Vec<Exchange>> {
    let urls: Vec<String> = match named {
        Some(url) => vec![inputs::exchange_url(url)?],
        None => wallet.with_state(|state| state.exchanges.keys().cloned().collect()),
    };
    let mut exchanges = Vec::new();
    let mut refusal = None;
    for url in urls {
        let exchange = wallet.fresh_exchange(&url).await?;
        match payment::check_account(&exchange, payto) {
            Ok(()) => exchanges.push(exchange),
            Err(error) => refusal = Some(error),
        }
    }
    match refusal {
        Some(error) if exchanges.is_empty() => Err(WalletError::from(error).into()),
        _ if exchanges.is_empty() => bail!("the wallet is empty; withdraw some money first"),
        _ => Ok(exchanges),
    }
}

fn is_spent(wallet: &Wallet, exchange: &Exchange) -> bool {
    let now = wallet.now();
    let plan = wallet.with_state(|state| payment::preview_deposit_all(state, &exchange.base_url, now));
    plan.is_ok_and(|plan| plan.contributions.is_empty())
}

fn preview_all(wallet: &Wallet, exchange: &Exchange, payto: &str) -> anyhow::Result<String> {
    let now = wallet.now();
    let plan = wallet
        .with_state(|state| payment::preview_deposit_all(state, &exchange.base_url, now))
        .map_err(WalletError::from)?;
    let credited = exchange.amount(plan.total.checked_sub(plan.fees)?);
    let requests = plan.contributions.len().div_ceil(DEPOSIT_COINS_MAX);
    Ok(format!(
        "{credited} from {} go to {payto} in {requests} request(s), after {}{}",
        exchange.base_url,
        describe_fees(&[("deposit", exchange.amount(plan.fees))]),
        wire_fee_words(exchange, payto, wallet)
    ))
}

/// Deposits until no coin of the exchange can be deposited, or an error occurs.
async fn deposit_exchange(
    wallet: &Wallet,
    exchange: &Exchange,
    payto: &str,
    deposits: &mut Deposits,
) -> anyhow::Result<()> {
    for _ in 0..ROUNDS_MAX {
        if deposits.failure.is_some() || is_spent(wallet, exchange) {
            break;
        }
        match wallet.deposit(&exchange.base_url, DepositAmount::All, payto).await {
            Ok(receipt) => {
                deposits.transactions.push(wallet.transaction(receipt.operation)?);
                deposits.receipts.push(receipt);
            }
            Err(error) => deposits.failure = Some(error),
        }
    }
    Ok(())
}

fn all_left(wallet: &Wallet, exchanges: &[Exchange]) -> anyhow::Result<Vec<Left>> {
    let now = wallet.now();
    let mut all = Vec::new();
    for exchange in exchanges {
        let left = wallet.with_state(|state| views::left(state, &exchange.base_url, now));
        all.extend(left.map_err(WalletError::from)?);
    }
    Ok(all)
}

fn left_words(left: &[Left]) -> String {
    let lines: Vec<String> = left
        .iter()
        .map(|left| format!("Left at {}: {} {}", left.exchange, left.amount, left.reason))
        .collect();
    lines.join("\n")
}

/// The named exchange, the only one, or the first with enough coins.
async fn choose_exchange(wallet: &Wallet, named: Option<&str>, amount: Amount) -> anyhow::Result<Exchange> {
    if let Some(url) = named {
        return Ok(wallet.fresh_exchange(url).await?);
    }
    let (now, exact) = (wallet.now(), DepositAmount::Exact(amount));
    let known: Vec<String> = wallet.with_state(|state| {
        let suits = |exchange: &&Exchange| exchange.currency == amount.currency;
        state.exchanges.values().filter(suits).map(|exchange| exchange.base_url.clone()).collect()
    });
    let enough =
        |url: &&String| wallet.with_state(|state| payment::preview_deposit(state, url, exact, now)).is_ok();
    // If no exchange has enough money, the first one's error says how much is missing.
    match known.iter().find(enough).or(known.first()) {
        Some(url) => Ok(wallet.fresh_exchange(url).await?),
        None => bail!("the wallet holds no {}; withdraw some first", amount.currency),
    }
}
