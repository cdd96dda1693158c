//! The command line.

use std::path::PathBuf;

use batzen_protocol::Duration;
use batzen_wallet::CipherChoice;
use clap::{Args, Subcommand, ValueEnum};

/// Hold and spend coins.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  batzen wallet withdraw --bank http://localhost:8082/ --user zoe --password zoe --amount KUDOS:20
  batzen wallet balance
  batzen wallet deposit KUDOS:5 payto://x-taler-bank/localhost/zoe
  batzen wallet pay taler://pay/shop.example/ORDER/
  batzen wallet send KUDOS:5 --summary lunch

Exit codes:
  0  done
  1  error
  2  wrong usage, or an unusable argument
  3  pending: continue with `batzen wallet run`
  4  not enough money
  5  refused by exchange, bank or shop
  6  another process uses the wallet
  7  disputed: the exchange or shop gave a false proof, see `batzen wallet evidence`

With --json, results go to standard output and errors to standard error, each as one JSON value."
)]
pub(crate) struct WalletArgs {
    /// The wallet file [default: batzen/wallet.db in the user's data directory]
    #[arg(long, global = true, value_name = "FILE")]
    pub wallet: Option<PathBuf>,
    /// Print results and errors as JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Do not ask: accept terms of service and confirm payments
    #[arg(long, short = 'y', global = true)]
    pub yes: bool,
    /// Use no colours, even on a terminal (the same as a non-empty NO_COLOR)
    #[arg(long, global = true)]
    pub no_color: bool,
    /// The command to run.
    #[command(subcommand)]
    pub command: WalletCommand,
}

/// The commands of the wallet.
#[derive(Debug, Subcommand)]
pub(crate) enum WalletCommand {
    /// Get coins for money in a bank account
    Withdraw(WithdrawArgs),
    /// Accept what a taler:// link offers: a withdrawal that a bank began, money from somebody, or a request
    Accept(AcceptArgs),
    /// Pay a shop: shows the contract of a taler://pay link, asks, and keeps the shop's receipt
    Pay(PayArgs),
    /// Pick up what a shop refunds of a purchase
    #[command(after_help = "Examples:
  batzen wallet refund taler://refund/shop.example/ORDER/
  batzen wallet refund 12

The money comes back to the coins that paid, and `batzen wallet run` refreshes them.")]
    Refund {
        /// The taler://refund or taler+http://refund URI, or the number of the purchase
        #[arg(value_name = "URI|ID")]
        purchase: String,
    },
    /// Pick up a tip of a shop: shows what a taler://tip link gives, asks, and fetches the coins
    #[command(after_help = "Example:
  batzen wallet tip taler://tip/shop.example/TIP")]
    Tip {
        /// The taler://tip or taler+http://tip URI
        uri: String,
    },
    /// Give up a purchase that cannot be paid: the shop gives back what it has deposited
    #[command(after_help = "Examples:
  batzen wallet abort 12

The wallet does this by itself if an offer has expired or the money is not enough. If the shop does not answer,
`batzen wallet cancel` gives up without it.")]
    Abort {
        /// Number of the purchase
        id: u64,
    },
    /// Send money to somebody: makes a link with which the receiver takes it
    #[command(after_help = "Examples:
  batzen wallet send KUDOS:5 --summary lunch
  batzen wallet send KUDOS:5 --expires '12 h'

The money comes back if nobody takes it before it expires, or with `batzen wallet cancel`.")]
    Send(PeerArgs),
    /// Request money from somebody: makes a link with which the payer pays
    #[command(after_help = "Examples:
  batzen wallet request KUDOS:5 --summary rent
  batzen wallet request KUDOS:5 --min-age 18 --exchange https://exchange.example/

`batzen wallet run` waits for the payment and fetches the coins.")]
    Request(PeerArgs),
    /// Decline money that somebody sends, or a request (a taler://pay-push or taler://pay-pull URI)
    #[command(after_help = "Example:
  batzen wallet decline taler://pay-pull/exchange.example/KEY")]
    Decline {
        /// The URI
        uri: String,
    },
    /// Show how much money the wallet holds
    #[command(after_help = "Examples:
  batzen wallet balance
  batzen wallet balance --json")]
    Balance,
    /// Pay coins out into a bank account
    Deposit(DepositArgs),
    /// Show the history, newest first, with the effect of each row and their total
    #[command(
        visible_alias = "history",
        after_help = "Examples:
  batzen wallet transactions
  batzen wallet transactions --all
  batzen wallet transactions 12

Effects include all fees. They sum to the total that `batzen wallet balance --json` shows."
    )]
    Transactions {
        /// Also show each refresh, which made change
        #[arg(long)]
        all: bool,
        /// Show only the transaction with this number
        id: Option<u64>,
    },
    /// Continue all unfinished operations
    Run(RunArgs),
    /// Show unfinished operations, their reasons and deadlines
    #[command(after_help = "Examples:
  batzen wallet pending
  batzen wallet pending --json")]
    Pending,
    /// Show the coins (without their secrets)
    #[command(after_help = "Examples:
  batzen wallet coins
  batzen wallet coins --json")]
    Coins,
    /// Show again where to send the money of a manual withdrawal
    #[command(after_help = "Examples:
  batzen wallet instructions 3
  batzen wallet instructions 3 --qr")]
    Instructions {
        /// Number of the withdrawal
        id: u64,
        /// Show QR codes even if the output is not a terminal
        #[arg(long)]
        qr: bool,
    },
    /// Take back money that nobody has accepted or a request, or give up a withdrawal, an unfinished purchase, a refund
    /// or tip that does not come, or a disputed payment
    #[command(after_help = "Examples:
  batzen wallet cancel 3")]
    Cancel {
        /// Number of the operation
        id: u64,
    },
    /// Show false proofs of exchanges and shops, or write them to a file for an auditor
    Evidence(EvidenceArgs),
    /// Add, update and list exchanges; read and accept their terms
    Exchanges(ExchangesArgs),
    /// Check that an exchange counts this wallet's coins among its debts
    VerifyExchange(VerifyExchangeArgs),
    /// Save everything into a file, or restore it
    BackupFile(BackupArgs),
}

/// Options of `verify-exchange`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  batzen wallet verify-exchange
  batzen wallet verify-exchange https://exchange.example/ --evidence evidence.json
  batzen wallet verify-exchange --from /mirrors/exchange

Small epochs are fetched as a whole, so that nobody learns which coins are looked for. Of large ones, only the parts with
this wallet's withdrawals are fetched, unless --payments is given; with --from a directory, everything is looked for and
nobody learns anything. Run it soon after each withdrawal, too: it then gets the exchange's receipts, without which a
missing coin cannot be proved.

Exit code 7: a coin is missing, or a fraud is proved.")]
pub(crate) struct VerifyExchangeArgs {
    /// Base URL of the exchange [default: the wallet's only one]
    #[arg(value_name = "URL")]
    pub exchange: Option<String>,
    /// Where the published files are: the URL of a mirror, or a directory with a copy [default: the exchange]
    #[arg(long, value_name = "URL|DIR")]
    pub from: Option<String>,
    /// Look for change and payments in large epochs, too, although that narrows down whose they are
    #[arg(long)]
    pub payments: bool,
    /// Do not ask the exchange for receipts
    #[arg(long)]
    pub no_receipts: bool,
    /// Base URL of an auditor who confirms the exchange's statements
    #[arg(long, value_name = "URL", requires = "auditor_key")]
    pub auditor: Option<String>,
    /// The auditor's public key
    #[arg(long, value_name = "KEY", requires = "auditor")]
    pub auditor_key: Option<batzen_crypto::EddsaPublicKey>,
    /// Write a proof of fraud that others can check with `batzen liabilities check-evidence`
    #[arg(long, value_name = "FILE")]
    pub evidence: Option<PathBuf>,
}

/// The preferred blind signatures.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Cipher {
    /// The cheaper one
    #[default]
    Any,
    /// Blind RSA
    Rsa,
    /// Clause Blind Schnorr
    Cs,
}

impl From<Cipher> for CipherChoice {
    fn from(cipher: Cipher) -> Self {
        match cipher {
            Cipher::Any => Self::Any,
            Cipher::Rsa => Self::Rsa,
            Cipher::Cs => Self::Cs,
        }
    }
}

/// Options of `withdraw`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  A test bank whose account the wallet may use (opened if needed):
    batzen wallet withdraw --bank http://localhost:8082/ --user zoe --password zoe --amount KUDOS:20
  A transfer that you make yourself:
    batzen wallet withdraw --exchange http://localhost:8081/ --amount KUDOS:20 --manual
  Pocket money:
    batzen wallet withdraw --exchange http://localhost:8081/ --amount KUDOS:20 --age-limit 14")]
pub(crate) struct WithdrawArgs {
    /// Amount to leave the bank account, e.g. KUDOS:20
    #[arg(long)]
    pub amount: String,
    /// Base URL of the exchange [default: the bank's suggestion]
    #[arg(long, value_name = "URL", required_unless_present = "bank")]
    pub exchange: Option<String>,
    /// Make the bank transfer yourself (the default without --bank)
    #[arg(long, conflicts_with = "bank")]
    pub manual: bool,
    /// Base URL of a test bank, where the wallet begins and confirms the withdrawal
    #[arg(long, value_name = "URL", requires = "user")]
    pub bank: Option<String>,
    /// Account at the test bank
    #[arg(long, value_name = "NAME", requires = "bank")]
    pub user: Option<String>,
    /// Password of the account; for play money only, since other users of this machine can see it
    #[arg(long, value_name = "PASSWORD", requires = "bank", conflicts_with = "password_file")]
    pub password: Option<String>,
    /// File with the password
    #[arg(long, value_name = "FILE", requires = "bank")]
    pub password_file: Option<PathBuf>,
    /// Withdraw exactly this amount, even if the exchange is set to common sums
    #[arg(long)]
    pub exact: bool,
    /// Which blind signatures to prefer
    #[arg(long, value_enum, default_value_t)]
    pub cipher: Cipher,
    /// For a child of this age: coins that can pay only where no higher age is required
    #[arg(long, value_name = "YEARS", value_parser = clap::value_parser!(u8).range(1..=31))]
    pub age_limit: Option<u8>,
    /// Wait up to this many seconds for the coins [default: 60 with --bank, else 0]
    #[arg(long, value_name = "SECONDS")]
    pub wait: Option<u64>,
    /// Show QR codes even if the output is not a terminal
    #[arg(long)]
    pub qr: bool,
}

/// Options of `accept`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  batzen wallet accept taler://withdraw/bank.example/taler-bank-integration/OPERATION
  batzen wallet accept taler+http://withdraw/localhost:8082/taler-bank-integration/OPERATION --wait 60
  batzen wallet accept taler://pay-push/exchange.example/KEY
  batzen wallet accept taler://pay-pull/exchange.example/KEY")]
pub(crate) struct AcceptArgs {
    /// The taler://withdraw, taler://pay-push or taler://pay-pull URI
    pub uri: String,
    /// Of a withdrawal: base URL of the exchange [default: the bank's suggestion]
    #[arg(long, value_name = "URL")]
    pub exchange: Option<String>,
    /// Of a withdrawal: which blind signatures to prefer
    #[arg(long, value_enum, default_value_t)]
    pub cipher: Cipher,
    /// Wait up to this many seconds for your confirmation at the bank, or for an identity check
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub wait: u64,
}

/// Options of `pay`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  batzen wallet pay taler://pay/shop.example/ORDER/
  batzen wallet pay 'taler://pay/shop.example/instances/kiosk/ORDER/SESSION?c=TOKEN'

What you have paid before is not paid again: the shop gets the receipt for the new session. The shop's receipt is in
the JSON result. If the contract promises refunds, `batzen wallet run` waits for them.")]
pub(crate) struct PayArgs {
    /// The taler://pay or taler+http://pay URI
    pub uri: String,
}

/// Options of `send` and `request`.
#[derive(Debug, Args)]
pub(crate) struct PeerArgs {
    /// Amount for the receiver, e.g. KUDOS:5
    pub amount: String,
    /// What it is for; the other person reads it
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub summary: String,
    /// How long the link is valid, such as "12 h"
    #[arg(long, value_name = "DURATION", default_value = "7 days", value_parser = duration)]
    pub expires: Duration,
    /// Only for payers of at least this age
    #[arg(long, value_name = "YEARS", default_value_t = 0, hide_default_value = true,
        value_parser = clap::value_parser!(u32).range(..=120))]
    pub min_age: u32,
    /// Base URL of the exchange [default: for sending the cheapest, for requesting the first with the
    /// currency]
    #[arg(long, value_name = "URL")]
    pub exchange: Option<String>,
    /// Show a QR code even if the output is not a terminal
    #[arg(long)]
    pub qr: bool,
}

/// A finite duration of the configuration syntax, above zero.
fn duration(text: &str) -> Result<Duration, String> {
    batzen_config::parse_duration(text)
        .filter(|duration| !duration.is_zero() && !duration.is_forever())
        .ok_or_else(|| "expected a duration such as 12 h or 7 days".to_owned())
}

/// A finite duration of the configuration syntax.
fn delay(text: &str) -> Result<Duration, String> {
    batzen_config::parse_duration(text)
        .filter(|duration| !duration.is_forever())
        .ok_or_else(|| "expected a duration such as 12 h, or 0 s".to_owned())
}

/// Options of `deposit`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  batzen wallet deposit KUDOS:5 payto://x-taler-bank/localhost/zoe
  batzen wallet deposit all payto://x-taler-bank/localhost/zoe

Deposit fees come on top of the amount. The exchange keeps its wire fee from the transfer. `all` deposits every coin of
every exchange, in several requests if needed, and says what is left and why.")]
pub(crate) struct DepositArgs {
    /// Amount for the account, e.g. KUDOS:5, or `all`
    #[arg(value_name = "AMOUNT|all")]
    pub amount: String,
    /// The account, e.g. payto://x-taler-bank/localhost/zoe
    pub payto: String,
    /// Base URL of the exchange whose coins to use [default: the first with enough coins; with `all` every
    /// exchange]
    #[arg(long, value_name = "URL")]
    pub exchange: Option<String>,
}

/// Options of `run`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  batzen wallet run
  batzen wallet run --once
  batzen wallet run --timeout 60")]
pub(crate) struct RunArgs {
    /// Do what is possible now, without waiting for banks or people
    #[arg(long)]
    pub once: bool,
    /// Stop after this many seconds [default: when nothing is pending]
    #[arg(long, value_name = "SECONDS", conflicts_with = "once")]
    pub timeout: Option<u64>,
    /// Send disputed requests again now, before they are due
    #[arg(long)]
    pub retry_disputed: bool,
}

/// Options of `evidence`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  batzen wallet evidence
  batzen wallet evidence --out evidence.json
  batzen wallet evidence 3 --accept-refused

The file contains requests and answers, but no secret keys. It shows whom you paid, and how much.")]
pub(crate) struct EvidenceArgs {
    /// Show only the evidence with this number
    pub id: Option<u64>,
    /// Write the evidence to a new JSON file for an auditor
    #[arg(long, value_name = "FILE", conflicts_with = "accept_refused")]
    pub out: Option<PathBuf>,
    /// Accept the proof's claim that operations took place which the exchange had refused, and try again
    #[arg(long, requires = "id")]
    pub accept_refused: bool,
}

/// Options of `exchanges`.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  batzen wallet exchanges add https://exchange.example/
  batzen wallet exchanges tos https://exchange.example/
  batzen wallet exchanges tos-accept https://exchange.example/"
)]
pub(crate) struct ExchangesArgs {
    /// The action.
    #[command(subcommand)]
    pub command: ExchangesCommand,
}

/// Actions on exchanges.
#[derive(Debug, Subcommand)]
pub(crate) enum ExchangesCommand {
    /// List the exchanges that the wallet knows
    #[command(after_help = "Example:
  batzen wallet exchanges list")]
    List,
    /// Add an exchange: fetch and verify its published keys and terms
    #[command(after_help = "Example:
  batzen wallet exchanges add https://exchange.example/")]
    Add {
        /// Base URL
        url: String,
    },
    /// Fetch again the data that an exchange publishes
    #[command(after_help = "Example:
  batzen wallet exchanges update")]
    Update {
        /// Base URL [default: all]
        url: Option<String>,
    },
    /// Show the coins that an exchange issues, and their fees
    #[command(after_help = "Example:
  batzen wallet exchanges show https://exchange.example/")]
    Show {
        /// Base URL
        url: String,
    },
    /// Print the terms of service
    #[command(after_help = "Example:
  batzen wallet exchanges tos https://exchange.example/")]
    Tos {
        /// Base URL
        url: String,
    },
    /// Accept the terms of service
    #[command(after_help = "Example:
  batzen wallet exchanges tos-accept https://exchange.example/")]
    TosAccept {
        /// Base URL
        url: String,
    },
    /// Show or set what the wallet does so that payments are harder to link to withdrawals
    #[command(after_help = "Examples:
  batzen wallet exchanges privacy https://exchange.example/
  batzen wallet exchanges privacy https://exchange.example/ --round-sums on --refresh-delay '12 h'

docs/privacy.md says what each option gives and costs.")]
    Privacy {
        /// Base URL
        url: String,
        /// Withdraw only common sums: at least what you ask for, from 50, 100, 200, 500 and so on
        #[arg(long, value_enum, value_name = "on|off")]
        round_sums: Option<Switch>,
        /// Hold coins of all sizes, as in a till, and pay without change if possible
        #[arg(long, value_enum, value_name = "on|off")]
        assortment: Option<Switch>,
        /// Wait for a random time up to this long before change is refreshed; `0 s` for not at all
        #[arg(long, value_name = "DURATION", value_parser = delay)]
        refresh_delay: Option<Duration>,
    },
}

/// State of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// Yes
    On,
    /// No
    Off,
}

impl ExchangesCommand {
    /// The base URL that the command names.
    pub(crate) fn url(&self) -> Option<&str> {
        match self {
            Self::List => None,
            Self::Update { url } => url.as_deref(),
            Self::Add { url }
            | Self::Show { url }
            | Self::Tos { url }
            | Self::TosAccept { url }
            | Self::Privacy { url, .. } => Some(url),
        }
    }
}

/// Options of `backup-file`.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  batzen wallet backup-file export wallet.backup
  batzen wallet --wallet new.db backup-file import wallet.backup"
)]
pub(crate) struct BackupArgs {
    /// The action.
    #[command(subcommand)]
    pub command: BackupCommand,
}

/// Actions on a backup.
#[derive(Debug, Subcommand)]
pub(crate) enum BackupCommand {
    /// Save everything into a new file, encrypted under a passphrase
    #[command(after_help = "Example:
  batzen wallet backup-file export wallet.backup --passphrase-file passphrase")]
    Export {
        /// The file
        file: PathBuf,
        /// File with the passphrase [default: ask on the terminal, or read a line from standard input]
        #[arg(long, value_name = "FILE")]
        passphrase_file: Option<PathBuf>,
        /// Do not encrypt: anyone who can read the file can spend the money
        #[arg(long, conflicts_with = "passphrase_file")]
        insecure: bool,
    },
    /// Restore everything into a new wallet. Never use a restored wallet and the original at the same time
    #[command(after_help = "Example:
  batzen wallet --wallet new.db backup-file import wallet.backup")]
    Import {
        /// The file
        file: PathBuf,
        /// File with the passphrase [default: ask on the terminal, or read a line from standard input]
        #[arg(long, value_name = "FILE")]
        passphrase_file: Option<PathBuf>,
    },
}
