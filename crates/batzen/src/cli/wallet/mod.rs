//! `batzen wallet`: hold and spend coins.

mod args;
mod backup_file;
mod deposit;
mod errors;
mod evidence;
mod exchanges;
mod inputs;
mod money;
mod output;
mod people;
mod purchases;
mod reports;
mod table;
mod tips;
mod verify_exchange;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use batzen_wallet::core::CoreError;
use batzen_wallet::{Wallet, WalletError};

pub(super) use args::WalletArgs;
use args::WalletCommand;
use errors::{ErrorReport, MissingWallet};
use inputs::InputError;
use output::Output;

/// Runs a `batzen wallet` command.
///
/// # Errors
/// Only errors that the command cannot report by itself: those of the runtime or of standard output.
pub(super) fn run(args: WalletArgs) -> anyhow::Result<ExitCode> {
    let output = Output::new(args.json, args.no_color);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    match runtime.block_on(dispatch(&args, &output)) {
        Ok(code) => Ok(ExitCode::from(code)),
        Err(error) if output::is_broken_pipe(&error) => Err(error),
        Err(error) => {
            let report = ErrorReport::new(&error);
            output.error(&report);
            Ok(ExitCode::from(report.exit_code))
        }
    }
}

async fn dispatch(args: &WalletArgs, output: &Output) -> anyhow::Result<u8> {
    check_inputs(&args.command)?;
    let path = match &args.wallet {
        Some(path) => path.clone(),
        None => default_path()?,
    };
    let result = execute(args, &path, output).await;
    // Change that waits for its refresh is needed now. Nothing was recorded yet.
    let is_short = result.as_ref().is_err_and(|error| {
        matches!(error.downcast_ref(), Some(WalletError::Core(CoreError::InsufficientFunds { .. })))
    });
    if is_short && open(&path)?.hasten_change().await? {
        output.note("Change that was waiting is refreshed now.");
        return execute(args, &path, output).await;
    }
    result
}

async fn execute(args: &WalletArgs, path: &Path, output: &Output) -> anyhow::Result<u8> {
    match &args.command {
        WalletCommand::Withdraw(command) => money::withdraw(&create(path)?, command, args.yes, output).await,
        WalletCommand::Accept(command) if inputs::is_peer_uri(&command.uri) => {
            people::accept(&create(path)?, command, args.yes, output).await
        }
        WalletCommand::Accept(command) => money::accept(&create(path)?, command, args.yes, output).await,
        WalletCommand::Pay(command) => purchases::pay(&create(path)?, command, args.yes, output).await,
        WalletCommand::Refund { purchase } => purchases::refund(&open(path)?, purchase, output).await,
        WalletCommand::Abort { id } => purchases::abort(&open(path)?, *id, output).await,
        WalletCommand::Tip { uri } => tips::tip(&create(path)?, uri, args.yes, output).await,
        WalletCommand::Send(command) => people::send(&open(path)?, command, args.yes, output).await,
        WalletCommand::Request(command) => people::request(&create(path)?, command, args.yes, output).await,
        WalletCommand::Decline { uri } => people::decline(&create(path)?, uri, output).await,
        WalletCommand::Deposit(command) => deposit::deposit(&open(path)?, command, args.yes, output).await,
        WalletCommand::Run(command) => money::run(&open(path)?, command, output).await,
        WalletCommand::Cancel { id } => money::cancel(&open(path)?, *id, output),
        WalletCommand::Instructions { id, qr } => money::instructions(&look(path)?, *id, *qr, output),
        WalletCommand::Balance => reports::balance(&look(path)?, output),
        WalletCommand::Transactions { all, id } => reports::transactions(&look(path)?, *all, *id, output),
        WalletCommand::Pending => reports::pending(&look(path)?, output),
        WalletCommand::Evidence(command) => evidence::run(path, command, output),
        WalletCommand::Coins => reports::coins(&look(path)?, output),
        WalletCommand::Exchanges(command) => exchanges::run(path, command, output).await,
        WalletCommand::VerifyExchange(command) => verify_exchange::run(&open(path)?, command, output).await,
        WalletCommand::BackupFile(command) => backup_file::run(path, command, output),
    }
}

/// Checks amounts and URLs before the wallet is opened and before any request.
fn check_inputs(command: &WalletCommand) -> Result<(), InputError> {
    match command {
        WalletCommand::Withdraw(args) => {
            inputs::amount(&args.amount)?;
            args.exchange.as_deref().map(inputs::exchange_url).transpose()?;
            args.bank.as_deref().map(inputs::bank_url).transpose()?;
        }
        WalletCommand::Accept(args) => {
            inputs::accept_uri(&args.uri)?;
            args.exchange.as_deref().map(inputs::exchange_url).transpose()?;
        }
        WalletCommand::Send(args) | WalletCommand::Request(args) => {
            inputs::amount(&args.amount)?;
            args.exchange.as_deref().map(inputs::exchange_url).transpose()?;
        }
        WalletCommand::Pay(args) => inputs::pay_uri(&args.uri)?,
        WalletCommand::Refund { purchase } => {
            inputs::purchase(purchase)?;
        }
        WalletCommand::Tip { uri } => {
            inputs::tip_uri(uri)?;
        }
        WalletCommand::Decline { uri } => inputs::peer_uri(uri)?,
        WalletCommand::Deposit(args) => {
            inputs::deposit_amount(&args.amount)?;
            inputs::payto(&args.payto)?;
            args.exchange.as_deref().map(inputs::exchange_url).transpose()?;
        }
        WalletCommand::Exchanges(args) => {
            args.command.url().map(inputs::exchange_url).transpose()?;
        }
        WalletCommand::VerifyExchange(args) => {
            args.exchange.as_deref().map(inputs::exchange_url).transpose()?;
        }
        _ => {}
    }
    Ok(())
}

/// `$XDG_DATA_HOME/batzen/wallet.db`, or below `~/.local/share`.
fn default_path() -> anyhow::Result<PathBuf> {
    let data = match std::env::var_os("XDG_DATA_HOME").map(PathBuf::from) {
        Some(path) if path.is_absolute() => path,
        _ => {
            let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
            PathBuf::from(home.context("HOME is not set; name the wallet file with --wallet FILE")?)
                .join(".local/share")
        }
    };
    Ok(data.join("batzen").join("wallet.db"))
}

/// Opens the wallet for changes. Creates the file if it does not exist.
fn create(path: &Path) -> anyhow::Result<Wallet> {
    Ok(Wallet::open(path)?)
}

/// Opens the wallet for changes. The file must exist.
fn open(path: &Path) -> anyhow::Result<Wallet> {
    if !path.exists() {
        return Err(MissingWallet(path.to_owned()).into());
    }
    create(path)
}

/// Opens the wallet for reading, even while `batzen wallet run` is using it. The file must exist.
fn look(path: &Path) -> anyhow::Result<Wallet> {
    if !path.exists() {
        return Err(MissingWallet(path.to_owned()).into());
    }
    match Wallet::open_read_only(path) {
        Ok(wallet) => Ok(wallet),
        // Opening for writing migrates a file of an older format; it reports other errors again.
        Err(_) => open(path),
    }
}
