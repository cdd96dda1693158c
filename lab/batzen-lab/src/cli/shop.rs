//! `batzen-lab shop`: run the example of a shop.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use batzen_cli_support::services;
use batzen_lab::shop::{RunningShop, ShopOptions};
use clap::{Args, Subcommand};

/// Run a small bookshop, the example of a shop that gets paid through a merchant backend.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct ShopArgs {
    #[command(subcommand)]
    command: ShopCommand,
}

#[derive(Subcommand)]
enum ShopCommand {
    /// Serve the bookshop on this machine
    Serve(ServeArgs),
}

/// Options of `shop serve`.
#[derive(Args)]
#[command(after_help = "Examples:
  batzen-lab shop serve --backend http://localhost:9966/instances/bookshop/ --token-file shop.token

The instance must exist. The shop keeps no data.")]
struct ServeArgs {
    /// Base URL of the shop's instance at the merchant backend, as customers reach it
    #[arg(long, value_name = "URL")]
    backend: String,
    /// File with the instance's access token
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// TCP port; 0 picks a free one
    #[arg(short, long, default_value_t = 8083)]
    port: u16,
    /// The shop's address in browsers [default: http://localhost:PORT/]
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
}

/// Runs a `batzen-lab shop` command.
///
/// # Errors
/// Any failure, as one line.
pub(super) fn run(args: ShopArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        ShopCommand::Serve(args) => services::block_on(serve(args)),
    }
}

async fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let stop = services::stop_signal()?;
    let ServeArgs { backend: backend_url, token_file, port, base_url } = args;
    let token = std::fs::read_to_string(&token_file).with_context(|| token_file.display().to_string())?;
    let token = token.trim().to_owned();
    let shop = RunningShop::start(ShopOptions { port, base_url, backend_url, token }).await?;
    eprintln!("shop ready: {}", shop.url());
    stop.await;
    shop.shutdown().await;
    Ok(ExitCode::SUCCESS)
}
