//! The merchant backend of a world: a process of its own that accepts the coins of the world's exchange.

use std::net::SocketAddr;
use std::path::Path;

use batzen_crypto::EddsaPublicKey;

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::scenarios::service::Service;
use crate::bench::scenarios::world::{CURRENCY, PATIENCE, WorldPlan, free_port, local};

/// A running merchant backend.
pub(super) struct Merchant {
    service: Service,
    /// Where it listens.
    pub(super) address: SocketAddr,
}

impl Merchant {
    /// Starts it on the server's cores.
    pub(super) fn start(plan: &WorldPlan, exchange_url: &str, master_pub: &EddsaPublicKey) -> Result<Self> {
        let port = free_port()?;
        let config = plan.dir.join("merchant.conf");
        let text = configuration(&plan.dir, port, exchange_url, master_pub);
        std::fs::write(&config, text).map_err(BenchError::io(&config))?;
        let conf = config.to_string_lossy();
        let words = ["merchant", "serve", "-c", &conf];
        let mut service = Service::start(plan, "merchant", &words, &plan.placement.server)?;
        let address = local(port);
        service.wait_until_ready(address, "/ready", PATIENCE, &plan.interrupted)?;
        Ok(Self { service, address })
    }

    pub(super) fn pid(&self) -> u32 {
        self.service.pid()
    }

    pub(super) fn still_runs(&mut self) -> Result<()> {
        self.service.still_runs()
    }

    pub(super) fn terminate(&mut self) -> Result<()> {
        self.service.terminate()
    }
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
