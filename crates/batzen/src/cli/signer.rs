//! `batzen signer`: keep an exchange's private keys in a separate process.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use batzen_cli_support::progress;
use batzen_cli_support::services::{self, Common};
use batzen_crypto::EddsaPrivateKey;
use batzen_http::{Listen, Server, ServerOptions};
use batzen_signer::address::Address;
use batzen_signer::channel::{self, Connect};
use batzen_signer::config::ModuleKind;
use batzen_signer::files;
use batzen_signer::keeper;
use batzen_signer::link::{Link, LinkError};
use batzen_signer::page;
use batzen_signer::server::SignerServer;
use batzen_signer::service_config::{HelperConfig, SignerConfig};
use batzen_signer::state::Signer;
use batzen_signer::status::StatusReport;
use clap::{Args, Subcommand};

use serde_json::json;

use super::{known_options, sample};

/// Time that a signer may take to answer an operator's request.
const PATIENCE: Duration = Duration::from_secs(5);

/// Keep an exchange's private keys in a separate process.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct SignerArgs {
    #[command(subcommand)]
    command: SignerCommand,
}

#[derive(Subcommand)]
enum SignerCommand {
    /// Hold the private keys, and sign for the nodes of the exchange
    Serve(ServeArgs),
    /// Create the static key of a signer or node, and print its public key for the other side's configuration
    Keygen(KeygenArgs),
    /// Print a configuration to start from
    SampleConfig(sample::SampleArgs),
    /// Show the state of this signer and its peers. Exit code 1 if one does not answer or has different keys
    Status(StatusArgs),
    /// Make this signer the one that creates keys; the others follow it
    Promote(PromoteArgs),
    /// Hold the private keys of one kind for the exchange on this machine
    Helper(HelperArgs),
}

#[derive(Args)]
#[command(after_help = "Examples:
  batzen signer serve --config /etc/taler/signer.conf
  batzen signer status --config /etc/taler/signer.conf

Reads [signer], [signer-node-*], [signer-peer-*], [coin_*], [taler-exchange-secmod-*] and [exchange] MASTER_PUBLIC_KEY.
The nodes' configuration has [exchange] SIGNERS, SIGNER_PUBLIC_KEYS and SIGNER_KEY_FILE. See docs/signer.md.")]
struct ServeArgs {
    #[command(flatten)]
    common: Common,
}

/// Creates the keys of one kind on schedule, keeps them in KEY_DIR of its section [taler-exchange-secmod-*], and
/// signs for the exchange over the local socket UNIXPATH. The exchange uses it with `exchange serve --key-helpers`
/// or `[exchange] KEY_HELPERS = YES`.
#[derive(Args)]
#[command(after_help = "Examples:
  batzen signer helper rsa --config /etc/taler/taler.conf
  batzen signer helper cs --config /etc/taler/taler.conf
  batzen signer helper eddsa --config /etc/taler/taler.conf

Also called taler-exchange-secmod-rsa, taler-exchange-secmod-cs and taler-exchange-secmod-eddsa. See docs/signer.md.")]
struct HelperArgs {
    /// The kind of keys: rsa and cs for coins, eddsa for confirmations
    #[arg(value_name = "KIND", value_parser = kind_of_key)]
    kind: ModuleKind,
    #[command(flatten)]
    common: Common,
}

/// Parses the name of a kind of keys.
fn kind_of_key(text: &str) -> Result<ModuleKind, String> {
    let kind = ModuleKind::ALL.into_iter().find(|kind| kind.name() == text);
    kind.ok_or_else(|| "expected rsa, cs or eddsa".to_owned())
}

#[derive(Args)]
struct KeygenArgs {
    /// File of the private key, readable only by its owner; an existing file is kept
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(Args)]
struct StatusArgs {
    #[command(flatten)]
    common: Common,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct PromoteArgs {
    #[command(flatten)]
    common: Common,
}

/// Runs a `batzen signer` command.
///
/// # Errors
/// Any failure, as one line.
pub(super) fn run(args: SignerArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        SignerCommand::Serve(args) => services::block_on(serve(args)),
        SignerCommand::Keygen(args) => keygen(&args.file),
        SignerCommand::SampleConfig(args) => Ok(sample::print(&args, "signer", sample::SIGNER)),
        SignerCommand::Status(args) => services::block_on(status(args)),
        SignerCommand::Promote(args) => services::block_on(promote(args)),
        SignerCommand::Helper(args) => services::block_on(helper(args)),
    }
}

fn load(common: &Common) -> anyhow::Result<(SignerConfig, EddsaPrivateKey)> {
    let ini = common.load()?;
    known_options::warn(&ini);
    let config = SignerConfig::from_ini(&ini)?;
    let key = channel::load_key(&config.key_file)?;
    Ok((config, key))
}

fn connect(config: &SignerConfig, key: &EddsaPrivateKey) -> anyhow::Result<Connect> {
    let keys = config.peers.iter().map(|peer| peer.public_key).chain([key.public_key()]).collect();
    Connect::new(key, keys).context("the signer's static key")
}

async fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let stop = services::stop_signal()?;
    let (config, key) = load(&args.common)?;
    let connect = connect(&config, &key)?;
    let (http, hostnames) = (config.http.clone(), config.hostnames.clone());
    let signer = Arc::new(Signer::open(config, key, args.common.timetravel.clock())?);
    let server = SignerServer::bind(Arc::clone(&signer)).await?;
    let mut ready = server.urls();
    let mut tasks = Vec::new();
    if let Some(address) = http {
        let server = Server::bind(listen(&address)?).await?;
        ready.push(server.bound().to_string());
        let api = Arc::new(page::api(Arc::clone(&signer), server.stats()));
        let serving =
            server.serve(api, ServerOptions { hostnames, ..ServerOptions::default() }, signer.drain.clone());
        tasks.push(tokio::spawn(async move {
            // Its log says how it ended.
            let _ = serving.await;
        }));
    }
    eprintln!("signer ready: {}", ready.join(" "));
    run_until(stop, signer, server, connect, tasks).await;
    Ok(ExitCode::SUCCESS)
}

/// Holds the keys of one kind.
async fn helper(args: HelperArgs) -> anyhow::Result<ExitCode> {
    let stop = services::stop_signal()?;
    let ini = args.common.load()?;
    known_options::warn(&ini);
    let config = HelperConfig::from_ini(&ini, args.kind)?;
    let signer = Arc::new(Signer::open_helper(config, args.common.timetravel.clock())?);
    let server = SignerServer::bind(Arc::clone(&signer)).await?;
    eprintln!("{} ready: {}", args.kind.section(), server.urls().join(" "));
    run_until(stop, signer, server, Connect::local(), Vec::new()).await;
    Ok(ExitCode::SUCCESS)
}

/// Serves, and keeps the keys up to date, until the signal to stop.
async fn run_until(
    stop: impl Future<Output = ()>,
    signer: Arc<Signer>,
    server: SignerServer,
    connect: Connect,
    mut tasks: Vec<tokio::task::JoinHandle<()>>,
) {
    let progress = progress::of_keys(progress::is_interactive());
    tasks.push(tokio::spawn(keeper::run(Arc::clone(&signer), connect, progress)));
    tasks.push(tokio::spawn(server.serve()));
    stop.await;
    signer.drain.trigger();
    for task in tasks {
        if task.await.is_err() {
            tracing::error!("a part of the signer did not end cleanly");
        }
    }
}

fn listen(address: &str) -> anyhow::Result<Listen> {
    let wrong = || format!("[signer] HTTP = {address}: expected ADDRESS:PORT");
    let (host, port) = address.rsplit_once(':').with_context(wrong)?;
    Ok(Listen::tcp(Some(host.to_owned()), port.parse().with_context(wrong)?))
}

fn keygen(file: &Path) -> anyhow::Result<ExitCode> {
    if file.exists() {
        let key = channel::load_key(file)?;
        eprintln!("batzen: {} is there already and stays; its public key:", file.display());
        println!("{}", key.public_key());
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(directory) = file.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        files::create_private_directory(directory)?;
    }
    let key = EddsaPrivateKey::generate();
    let file = std::path::absolute(file).context("the file's name")?;
    files::write_private_file(&file, key.as_bytes())?;
    println!("{}", key.public_key());
    Ok(ExitCode::SUCCESS)
}

/// A signer's name and address, and its answer.
type Answer = (String, Address, Result<StatusReport, LinkError>);

async fn ask(connect: &Connect, address: &Address) -> Result<StatusReport, LinkError> {
    Link::connect(connect, address, PATIENCE).await?.status().await
}

async fn ask_all(config: &SignerConfig, connect: &Connect) -> Vec<Answer> {
    let own = config.listen.first().map(|address| ("this".to_owned(), address.clone()));
    let peers = config.peers.iter().map(|peer| (peer.name.clone(), peer.address.clone()));
    let mut answers = Vec::new();
    for (name, address) in own.into_iter().chain(peers) {
        let answer = ask(connect, &address).await;
        answers.push((name, address, answer));
    }
    answers
}

async fn status(args: StatusArgs) -> anyhow::Result<ExitCode> {
    let (config, key) = load(&args.common)?;
    let answers = ask_all(&config, &connect(&config, &key)?).await;
    let versions: std::collections::HashSet<_> =
        answers.iter().map(|(.., answer)| answer.as_ref().ok().map(|report| &report.keys_version)).collect();
    let is_well = versions.len() == 1 && !versions.contains(&None);
    if args.json {
        let signers: Vec<_> = answers
            .iter()
            .map(|(name, address, answer)| match answer {
                Ok(report) => json!({"name": name, "address": address.to_string(), "status": report}),
                Err(error) => {
                    json!({"name": name, "address": address.to_string(), "error": error.to_string()})
                }
            })
            .collect();
        println!("{:#}", json!({"same_keys": is_well, "signers": signers}));
    } else {
        for (name, address, answer) in &answers {
            println!("{name} {address}: {}", answer.as_ref().map_or_else(ToString::to_string, describe));
        }
        println!("{}", if is_well { "all have the same keys" } else { "not all have the same keys" });
    }
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn describe(report: &StatusReport) -> String {
    let mut text = format!(
        "{} (epoch {}), keys {}: {} RSA, {} CS, {} online; {} connections",
        report.role,
        report.epoch,
        report.keys_version,
        report.rsa_keys,
        report.cs_keys,
        report.signing_keys,
        report.connections
    );
    if !report.complete {
        text += "; not every section has a key";
    }
    if let Some(synced) = report.synced_us.filter(|_| report.role == "follower") {
        let ago = report.time_us.saturating_sub(synced) / 1_000_000;
        text += &format!("; synchronized {ago} s ago with {}", report.primary.as_deref().unwrap_or("?"));
    }
    if let Some(error) = &report.sync_error {
        text += &format!("; {error}");
    }
    text
}

async fn promote(args: PromoteArgs) -> anyhow::Result<ExitCode> {
    let (config, key) = load(&args.common)?;
    let connect = connect(&config, &key)?;
    let answers = ask_all(&config, &connect).await;
    let epochs = answers.iter().filter_map(|(.., answer)| answer.as_ref().ok());
    let above = epochs.map(|report| report.epoch).max().unwrap_or(0);
    let Some(own) = config.listen.first() else { bail!("[signer] LISTEN is missing") };
    let mut link = Link::connect(&connect, own, PATIENCE).await.context("this signer does not answer")?;
    let report = link.promote(above).await?;
    println!("this signer is the primary now: {}", describe(&report));
    for (name, _, answer) in answers.iter().skip(1) {
        if let Err(error) = answer {
            println!("{name} was not asked ({error}): it gives way when it sees this one");
        }
    }
    Ok(ExitCode::SUCCESS)
}
