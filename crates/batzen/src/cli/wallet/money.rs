//! Commands that move money.

use std::time::Duration;

use anyhow::{Context, bail};
use batzen_wallet::core::url::normalise_base_url;
use batzen_wallet::core::views::describe_fees;
use batzen_wallet::core::withdraw;
use batzen_wallet::{
    Amount, CipherChoice, CoinWish, Exchange, ManualWithdrawal, PendingOperation, RunReport, RunUntil,
    Status, Wallet, WalletError,
};

use super::args::{AcceptArgs, RunArgs, WithdrawArgs};
use super::errors::{EXIT_PENDING, EXIT_REFUSED};
use super::output::{Output, day};
use super::{evidence, inputs};

/// Fetches the exchange's data if needed, and has the user accept its terms.
pub(super) async fn usable_exchange(
    wallet: &Wallet,
    url: &str,
    yes: bool,
    output: &Output,
) -> anyhow::Result<Exchange> {
    let exchange = output.during(format!("Asking {url}"), wallet.fresh_exchange(url)).await?;
    if !exchange.terms_accepted() {
        let question = format!(
            "Do you accept the terms of service (version {}) of {}? Read them with `batzen wallet exchanges tos {}`.",
            exchange.terms.version, exchange.base_url, exchange.base_url
        );
        output.confirm(&question, yes)?;
        wallet.accept_terms(&exchange.base_url)?;
    }
    Ok(exchange)
}

/// Lines with what the wallet can spend, each after a line break.
pub(super) fn available(wallet: &Wallet, output: &Output) -> anyhow::Result<String> {
    let balances = wallet.balance()?;
    Ok(balances.iter().map(|balance| format!("\nAvailable: {}", output.bold(balance.available))).collect())
}

/// A plain description of what a withdrawal will yield.
fn preview_words(
    wallet: &Wallet,
    exchange: &Exchange,
    amount: Amount,
    wish: CoinWish,
) -> anyhow::Result<String> {
    let plan = withdraw::preview(exchange, amount, wish, wallet.now()).map_err(WalletError::from)?;
    let mut words = format!(
        "{amount} from your bank account become {} in {} coins of {}; {}",
        exchange.amount(plan.value),
        plan.denoms.len(),
        exchange.base_url,
        describe_fees(&[("withdrawal", exchange.amount(plan.fees))]),
    );
    if !plan.leftover.is_zero() {
        words.push_str(&format!(
            "; {} are too little for a coin and return to your account when the reserve closes",
            exchange.amount(plan.leftover)
        ));
    }
    Ok(words)
}

/// Waits for an operation, makes change, and prints its line of the history.
async fn finish(wallet: &Wallet, id: u64, wait: Duration, output: &Output) -> anyhow::Result<u8> {
    let bar = output.progress("Waiting for exchange and bank");
    let result = wallet.finish_within(id, wait).await;
    let report = wallet.run_pending().await;
    bar.finish_and_clear();
    report?;
    let line = wallet.transaction(id)?;
    let code = match (&result, line.status) {
        (_, Status::Failed) => EXIT_REFUSED,
        (Ok(()), _) => 0,
        (
            Err(WalletError::Pending { .. } | WalletError::NoAnswer(_) | WalletError::Unavailable { .. }),
            _,
        ) => EXIT_PENDING,
        (Err(_), _) => return Err(result.expect_err("matched as an error").into()),
    };
    let mut text = line.description.clone();
    match (line.status, &line.message) {
        (Status::Pending, message) => text.push_str(&format!(
            "\nNot finished: {}. Continue with `batzen wallet run`.",
            message.as_deref().unwrap_or("waiting")
        )),
        (_, Some(message)) => text.push_str(&format!("\n{message}")),
        (_, None) => {}
    }
    text.push_str(&available(wallet, output)?);
    output.result(&line, &text)?;
    Ok(code)
}

pub(super) async fn withdraw(
    wallet: &Wallet,
    args: &WithdrawArgs,
    yes: bool,
    output: &Output,
) -> anyhow::Result<u8> {
    let wish = CoinWish { cipher: CipherChoice::from(args.cipher), age_limit: args.age_limit };
    let amount = sum_for(wallet, args, inputs::amount(&args.amount)?, output);
    match (&args.bank, &args.user, &args.exchange) {
        (Some(bank), Some(user), exchange) => {
            let password = match (&args.password, &args.password_file) {
                (Some(password), _) => password.clone(),
                (None, Some(file)) => read_secret(file)?,
                (None, None) => bail!("give the password of the bank account with --password-file FILE"),
            };
            let login = batzen_wallet::core::withdraw::BankLogin {
                access_url: batzen_wallet::bank::access_url(bank).map_err(WalletError::from)?,
                user: user.clone(),
                password,
            };
            let offer = output.during(format!("Asking {bank}"), wallet.begin_at_bank(&login, amount)).await?;
            let url = exchange
                .as_deref()
                .or(offer.suggested_exchange.as_deref())
                .context("the bank suggests no exchange; name one with --exchange URL")?;
            let exchange = usable_exchange(wallet, url, yes, output).await?;
            let words = preview_words(wallet, &exchange, amount, wish)?;
            output.note(&words);
            output.confirm("Withdraw?", yes)?;
            let id = wallet.accept_withdrawal(&offer, Some(&exchange.base_url), wish, Some(login)).await?;
            finish(wallet, id, Duration::from_secs(args.wait.unwrap_or(60)), output).await
        }
        (_, _, Some(exchange)) => {
            let exchange = usable_exchange(wallet, exchange, yes, output).await?;
            output.note(&preview_words(wallet, &exchange, amount, wish)?);
            let manual = wallet.withdraw_manual(&exchange.base_url, amount, wish).await?;
            match args.wait {
                None | Some(0) => {
                    print_instructions(&manual, args.qr, output)?;
                    Ok(0)
                }
                Some(seconds) => {
                    output.note(&instruction_words(&manual, args.qr, output)?);
                    finish(wallet, manual.operation, Duration::from_secs(seconds), output).await
                }
            }
        }
        _ => bail!("name the exchange with --exchange URL"),
    }
}

/// The sum to withdraw for an amount: a common one if the exchange is set to these.
fn sum_for(wallet: &Wallet, args: &WithdrawArgs, amount: Amount, output: &Output) -> Amount {
    if args.exact {
        return amount;
    }
    let named = args.exchange.as_deref().and_then(|url| normalise_base_url(url).ok());
    let sum = wallet.with_state(|state| {
        let known = state.exchanges.values().filter(|exchange| exchange.currency == amount.currency);
        let meant = known.filter(|exchange| named.as_ref().is_none_or(|url| *url == exchange.base_url));
        meant.map(|exchange| exchange.discretion.sum_for(amount.money)).max()
    });
    let sum = sum.unwrap_or(amount.money).of(amount.currency);
    if sum != amount {
        output.note(&format!(
            "{sum} instead of {amount}, since many people withdraw {sum}; --exact prevents this"
        ));
    }
    sum
}

/// The text in a file, without the end of its line.
pub(super) fn read_secret(file: &std::path::Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn instruction_words(manual: &ManualWithdrawal, qr: bool, output: &Output) -> anyhow::Result<String> {
    let mut text = format!(
        "Transfer {} with exactly this subject:\n\n  {}\n\nto (any one of):\n",
        output.bold(manual.amount),
        output.bold(manual.reserve_pub)
    );
    for payto in &manual.payto_uris {
        text.push_str(&format!("\n  {payto}\n"));
        if let Some(image) = output.qr(payto, qr)? {
            text.push_str(&image);
            text.push('\n');
        }
    }
    text.push_str(&format!(
        "\nThen `batzen wallet run` fetches the coins. To see this again: `batzen wallet instructions {}`.",
        manual.operation
    ));
    Ok(text)
}

fn print_instructions(manual: &ManualWithdrawal, qr: bool, output: &Output) -> anyhow::Result<()> {
    output.result(manual, &instruction_words(manual, qr, output)?)
}

pub(super) fn instructions(wallet: &Wallet, id: u64, qr: bool, output: &Output) -> anyhow::Result<u8> {
    print_instructions(&wallet.manual_withdrawal(id)?, qr, output)?;
    Ok(0)
}

pub(super) async fn accept(
    wallet: &Wallet,
    args: &AcceptArgs,
    yes: bool,
    output: &Output,
) -> anyhow::Result<u8> {
    let cipher = CipherChoice::from(args.cipher);
    let offer = output.during("Asking the bank", wallet.inspect_withdrawal(&args.uri)).await?;
    let url = args
        .exchange
        .as_deref()
        .or(offer.suggested_exchange.as_deref())
        .context("the bank suggests no exchange; name one with --exchange URL")?;
    let exchange = usable_exchange(wallet, url, yes, output).await?;
    output.note(&preview_words(wallet, &exchange, offer.amount, cipher.into())?);
    output.confirm("Withdraw?", yes)?;
    let id = wallet.accept_withdrawal(&offer, Some(&exchange.base_url), cipher, None).await?;
    finish(wallet, id, Duration::from_secs(args.wait), output).await
}

pub(super) async fn run(wallet: &Wallet, args: &RunArgs, output: &Output) -> anyhow::Result<u8> {
    let until =
        if args.once { RunUntil::Idle } else { RunUntil::Finished(args.timeout.map(Duration::from_secs)) };
    if args.retry_disputed {
        wallet.retry_disputed()?;
    }
    if !args.once {
        for operation in wallet.pending() {
            output.note(&format!("{} {}: {}", operation.kind, operation.id, pending_words(&operation)));
        }
    }
    // Keys first, because revocations and new signing keys affect pending operations.
    let stale: Vec<String> = wallet.with_state(|state| {
        let now = wallet.now();
        state
            .exchanges
            .values()
            .filter(|exchange| exchange.is_stale(now))
            .map(|exchange| exchange.base_url.clone())
            .collect()
    });
    for url in stale {
        if let Err(error) = wallet.add_exchange(&url).await {
            output.note(&format!("{url} could not be updated: {error}"));
        }
    }
    let words = "Working on what is pending (Ctrl-C stops; nothing is lost)";
    let report = output.during(words, wallet.run(until)).await?;
    output.result(&report, &report_words(wallet, &report, output)?)?;
    Ok(if report.pending.is_empty() { 0 } else { EXIT_PENDING })
}

/// The event that a pending operation waits for, and its deadline:
/// `waits for the bank transfer; reserve expires 2026-12-08`.
pub(super) fn pending_words(operation: &PendingOperation) -> String {
    let mut words = operation.message.clone().unwrap_or_else(|| operation.waits_for.to_owned());
    if let (Some(until), Some(event)) = (operation.until, operation.until_event) {
        words.push_str(&format!("; {event} {}", day(until)));
    }
    words
}

fn report_words(wallet: &Wallet, report: &RunReport, output: &Output) -> anyhow::Result<String> {
    let mut text = String::new();
    for id in &report.finished {
        let line = wallet.transaction(*id)?;
        let status = if line.status == Status::Failed { "failed" } else { "done" };
        text.push_str(&format!("{status}: {}\n", line.description));
        if let Some(message) = &line.message {
            text.push_str(&format!("  {message}\n"));
        }
    }
    for operation in &report.pending {
        let state = if operation.evidence.is_some() { "disputed" } else { "pending" };
        let words = pending_words(operation);
        text.push_str(&format!("{state}: {} {}: {words}\n", operation.kind, operation.id));
    }
    if text.is_empty() {
        text.push_str("Nothing to do.\n");
    }
    for balance in wallet.balance()? {
        text.push_str(&format!("Available: {}\n", output.bold(balance.available)));
    }
    text.push_str(&evidence::notice(wallet, output));
    Ok(text)
}

pub(super) fn cancel(wallet: &Wallet, id: u64, output: &Output) -> anyhow::Result<u8> {
    wallet.cancel(id)?;
    let line = wallet.transaction(id)?;
    let text = match line.kind {
        "withdrawal" => {
            format!("Withdrawal {id} is given up. If you sent money, it returns when the reserve closes.")
        }
        "send" | "request" => format!(
            "{} {id} is being taken back. Continue with `batzen wallet run`, which asks the exchange.",
            if line.kind == "send" { "Payment" } else { "Request" }
        ),
        "tip" => format!("Tip {id} is given up. If the shop has given its coins, they are lost."),
        "refund" | "pick-up" => {
            "The wallet waits no longer for this refund. `batzen wallet refund` asks for it again.".to_owned()
        }
        _ => {
            format!("Payment {id} is given up. Continue with `batzen wallet run`, which refreshes its coins.")
        }
    };
    output.result(&line, &text)?;
    Ok(0)
}
