//! The merchant backend of a world: a process of its own that accepts the coins of the world's exchange.

use std::net::SocketAddr;
use std::path::Path;

use batzen_crypto::EddsaPublicKey;

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::scenarios::service::Service;
use crate::bench::scenarios::world::{CURRENCY, PATIENCE, WorldPlan, free_port, local};

/// Starts it on the server's cores. Returns it with the address at which it listens.
pub(super) fn start(
    plan: &WorldPlan,
    exchange_url: &str,
    master_pub: &EddsaPublicKey,
) -> Result<(Service, SocketAddr)> {
    let port = free_port()?;
    let config = plan.dir.join("merchant.conf");
    let text = configuration(&plan.dir, port, exchange_url, master_pub);
    std::fs::write(&config, text).map_err(BenchError::io(&config))?;
    let conf = config.to_string_lossy();
    let words = ["merchant", "serve", "-c", &conf];
    let mut service = Service::start(plan, "merchant", &words, &plan.placement.server)?;
    let address = local(port);
    service.wait_until_ready(address, "/ready", PATIENCE, &plan.interrupted)?;
    Ok((service, address))
}

fn configuration(dir: &Path, port: u16, exchange_url: &str, master_pub: &EddsaPublicKey) -> String {
    format!(
        "# Written by `batzen-lab bench`.
[taler]
CURRENCY = {CURRENCY}

[merchant]
PORT = {port}
BIND_TO = 127.0.0.1
DATA_DIR = {data}

[merchant-exchange-1]
EXCHANGE_BASE_URL = {exchange_url}
MASTER_KEY = {master_pub}
CURRENCY = {CURRENCY}
",
        data = dir.join("merchant").display(),
    )
}
