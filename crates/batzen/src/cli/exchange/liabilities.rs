//! `batzen exchange liabilities`: publishes what the exchange owes for its coins.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use batzen_cli_support::services;
use batzen_exchange::config::ExchangeConfig;
use batzen_exchange::workers::liabilities::{self, LiabilitiesError, Round};
use batzen_exchange::workers::link;
use batzen_exchange::workers::program::LinkedPages;

use super::{WorkerArgs, set_data, start_beside};

/// Interval at which a running service is asked whether an epoch is due.
const ASK: std::time::Duration = std::time::Duration::from_secs(30);

fn tell(published: Option<(u64, u64)>) {
    match published {
        Some((epoch, leaves)) => eprintln!("liabilities: published epoch {epoch} with {leaves} leaves"),
        None => eprintln!("liabilities: no epoch is due"),
    }
}

/// Publishes epochs: in the running service if the store is embedded, otherwise in this process.
pub(super) async fn run(args: WorkerArgs) -> anyhow::Result<ExitCode> {
    let stop = services::stop_signal()?;
    tokio::pin!(stop);
    let mut ini = args.common.load()?;
    if let Some(data) = &args.data {
        set_data(&mut ini, data)?;
    }
    let metrics = args.metrics_address(&ini, "liabilities")?;
    let config = ExchangeConfig { metrics: None, ..ExchangeConfig::from_ini(&ini)? };
    if config.liabilities.is_none() {
        bail!("the configuration has no [exchange-liabilities]");
    }
    let socket = link::socket(&config.runtime_dir);
    if !config.store.is_database() {
        let pages = LinkedPages::start(&socket, metrics.as_ref()).await?;
        services::show_metrics_url(pages.url());
        loop {
            match link::publish_in_service(&socket).await? {
                Some(published) if args.test => {
                    tell(published);
                    return Ok(ExitCode::SUCCESS);
                }
                Some(Some(published)) => tell(Some(published)),
                // Nobody else has the store open, so this process may.
                None if args.test => break,
                Some(None) | None => {}
            }
            tokio::select! {
                () = &mut stop => return Ok(ExitCode::SUCCESS),
                () = tokio::time::sleep(ASK) => {}
            }
        }
        pages.end().await;
    }
    let config = ExchangeConfig { metrics, ..config };
    let exchange = start_beside(config, args.common.timetravel.clock(), "publishes").await?;
    services::show_metrics_url(exchange.metrics_url());
    let work = async {
        exchange.ready().await?;
        if !args.test {
            eprintln!("liabilities: working on the database");
            liabilities::run(Arc::clone(exchange.app())).await;
            return anyhow::Ok(None);
        }
        match liabilities::round(exchange.app()).await {
            Ok(Round::Published { epoch, leaves }) => Ok(Some(Some((epoch, leaves)))),
            Ok(Round::NotDue(_)) => Ok(Some(None)),
            Err(LiabilitiesError::Stopped) => Ok(None),
            Err(error) => Err(error.into()),
        }
    };
    let ended = tokio::select! {
        () = &mut stop => Ok(None),
        ended = work => ended,
    };
    exchange.shutdown().await?;
    if let Some(published) = ended? {
        tell(published);
    }
    Ok(ExitCode::SUCCESS)
}
