//! `batzen wallet`: hold and spend coins.

mod args;
mod backup_file;
mod evidence;
mod exchanges;
mod money;
mod output;
mod reports;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use batzen_wallet::core::CoreError;
use batzen_wallet::store::StoreError;
use batzen_wallet::{Wallet, WalletError};

pub use args::WalletArgs;
use args::WalletCommand;
use output::Output;

/// Some operation is not finished; `batzen wallet run` continues it.
const EXIT_PENDING: u8 = 3;
/// Not enough money in the wallet.
const EXIT_INSUFFICIENT: u8 = 4;
/// The exchange or the bank refused.
const EXIT_REFUSED: u8 = 5;
/// Another process works with the wallet.
const EXIT_IN_USE: u8 = 6;
/// The exchange gave a false proof.
const EXIT_DISPUTED: u8 = 7;

/// Runs a `batzen wallet` command.
///
/// # Errors
/// Only what happens before the command can report it by itself: the runtime or the standard output failing.
pub fn run(args: WalletArgs) -> anyhow::Result<ExitCode> {
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
            let code = exit_code(&error);
            output.error(&error, code);
            Ok(ExitCode::from(code))
        }
    }
}

async fn dispatch(args: &WalletArgs, output: &Output) -> anyhow::Result<u8> {
    let path = match &args.wallet {
        Some(path) => path.clone(),
        None => default_path()?,
    };
    let path = path.as_path();
    match &args.command {
        WalletCommand::Withdraw(command) => money::withdraw(&open(path)?, command, args.yes, output).await,
        WalletCommand::Accept(command) => money::accept(&open(path)?, command, args.yes, output).await,
        WalletCommand::Deposit(command) => money::deposit(&open(path)?, command, args.yes, output).await,
        WalletCommand::Run(command) => money::run(&open(path)?, command, output).await,
        WalletCommand::Cancel { id } => money::cancel(&open(path)?, *id, output),
        WalletCommand::Instructions { id, qr } => money::instructions(&look(path)?, *id, *qr, output),
        WalletCommand::Balance => reports::balance(&look(path)?, output),
        WalletCommand::Transactions { all, id } => reports::transactions(&look(path)?, *all, *id, output),
        WalletCommand::Pending => reports::pending(&look(path)?, output),
        WalletCommand::Evidence(command) => evidence::run(path, command, output),
        WalletCommand::Coins => reports::coins(&look(path)?, output),
        WalletCommand::Exchanges(command) => exchanges::run(path, command, output).await,
        WalletCommand::BackupFile(command) => backup_file::run(path, command, output),
    }
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

/// The wallet for changing it; created if it is not there.
fn open(path: &Path) -> anyhow::Result<Wallet> {
    Ok(Wallet::open(path)?)
}

/// The wallet for looking at it, also while `batzen wallet run` works with it.
fn look(path: &Path) -> anyhow::Result<Wallet> {
    if !path.exists() {
        return open(path);
    }
    match Wallet::open_read_only(path) {
        Ok(wallet) => Ok(wallet),
        // An older format is brought up to date by opening it for writing; other troubles show there again.
        Err(_) => open(path),
    }
}

fn exit_code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<WalletError>() {
        Some(WalletError::Pending { .. } | WalletError::Transport(_) | WalletError::Unavailable { .. }) => {
            EXIT_PENDING
        }
        Some(WalletError::Core(CoreError::InsufficientFunds { .. })) => EXIT_INSUFFICIENT,
        Some(WalletError::Failed { .. } | WalletError::Core(CoreError::Refused { .. })) => EXIT_REFUSED,
        Some(WalletError::Store(StoreError::InUse(_))) => EXIT_IN_USE,
        Some(WalletError::Disputed { .. }) => EXIT_DISPUTED,
        _ => 1,
    }
}
