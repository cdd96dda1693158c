//! A service that runs already, which a scenario loads instead of one of its own.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::str::FromStr;

use clap::Args;

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::random::Seed;
use crate::bench::scenarios::options::{LoadOptions, RunOptions};
use crate::bench::scenarios::world::BANK_HOST;

/// A server that takes plain HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// Its URL, with a slash at the end.
    pub(crate) url: String,
    /// Its name in the URL, without port.
    pub(crate) host: String,
    pub(crate) address: SocketAddr,
    /// The path in the URL, with a slash at both ends.
    pub(crate) path: String,
}

impl FromStr for Server {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let rest = text.strip_prefix("http://").ok_or(
            "expected http://HOST:PORT/: requests are prepared without TLS, so name a process itself, not its proxy",
        )?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let authority = if authority.rsplit(']').next().is_some_and(|end| end.contains(':')) {
            authority.to_owned()
        } else {
            format!("{authority}:80")
        };
        let address = authority.to_socket_addrs().map_err(|error| format!("{authority}: {error}"))?.next();
        let host = authority.rsplit_once(':').map_or("", |(host, _)| host).to_owned();
        let path = path.trim_matches('/');
        let path = if path.is_empty() { "/".to_owned() } else { format!("/{path}/") };
        let address = address.ok_or_else(|| format!("{authority} has no address"))?;
        Ok(Self { url: format!("http://{authority}{path}"), host, address, path })
    }
}

/// Options of scenarios that can load an exchange that runs already.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TargetOptions {
    /// Load the exchange at this URL, http://HOST:PORT/, instead of one that is started for the run
    #[arg(long, value_name = "URL", requires = "gateway")]
    target: Option<Server>,
    /// Wire gateway of that exchange's account, whose test transfers fill reserves:
    /// http://HOST:PORT/taler-wire-gateway/ACCOUNT/
    #[arg(long, value_name = "URL", requires = "target")]
    gateway: Option<Server>,
}

/// An exchange that runs already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) exchange: &'a Server,
    /// The wire gateway of its account.
    pub(crate) gateway: &'a Server,
}

impl TargetOptions {
    /// The exchange to load, if it runs already.
    pub(crate) fn get(&self) -> Option<Target<'_>> {
        Some(Target { exchange: self.target.as_ref()?, gateway: self.gateway.as_ref()? })
    }

    /// Refuses a target, for this reason.
    ///
    /// # Errors
    /// If there is a target.
    pub(crate) fn refuse(&self, why: &str) -> Result<()> {
        match &self.target {
            Some(_) => Err(BenchError::Usage(format!("--target: {why}"))),
            None => Ok(()),
        }
    }

    /// Checks that no option is about an exchange that the run starts.
    ///
    /// # Errors
    /// If there is a target, and such an option.
    pub(crate) fn check(&self, load: &LoadOptions, run: &RunOptions) -> Result<()> {
        let Some(target) = self.get() else { return Ok(()) };
        if target.exchange.path != "/" {
            return self.refuse("expected an exchange without a path, such as http://127.0.0.1:8081/");
        }
        for (is_given, option) in [
            (load.with_workers, "--with-workers"),
            (load.with_auditor, "--with-auditor"),
            (load.nodes > 1, "--nodes"),
            (load.store.is_given(), "an option of the store"),
        ] {
            if is_given {
                return self.refuse(&format!("that exchange is set up already, so {option} has no effect"));
            }
        }
        check_run(run)
    }

    /// The seed of a run. Where an exchange stays, no secret may be used twice.
    pub(crate) fn seed(&self, number: u64) -> Seed {
        let seed = Seed::new(number);
        match self.target {
            Some(_) => {
                let mut fresh = [0; 16];
                batzen_crypto::fill_random(&mut fresh);
                seed.part(&format!("{fresh:?}"))
            }
            None => seed,
        }
    }

    /// The name of the bank in payto URIs.
    pub(crate) fn bank_host(&self) -> &str {
        self.gateway.as_ref().map_or(BANK_HOST, |gateway| &gateway.host)
    }
}

/// Checks that no option is about processes that the run starts, where the service runs already.
///
/// # Errors
/// If there is such an option.
pub(crate) fn check_run(run: &RunOptions) -> Result<()> {
    for (is_given, option) in
        [(run.server_cores.is_some(), "--server-cores"), (run.keep_world, "--keep-world")]
    {
        if is_given {
            let why = "that service runs already";
            return Err(BenchError::Usage(format!("--target: {why}, so {option} has no effect")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_an_address_and_a_path() {
        let server: Server = "http://127.0.0.1:8082/taler-wire-gateway/exchange".parse().unwrap();
        assert_eq!(
            (server.host.as_str(), server.path.as_str()),
            ("127.0.0.1", "/taler-wire-gateway/exchange/")
        );
        assert_eq!(server.url, "http://127.0.0.1:8082/taler-wire-gateway/exchange/");
        let server: Server = "http://[::1]".parse().unwrap();
        assert_eq!((server.address.port(), server.path.as_str(), server.host.as_str()), (80, "/", "[::1]"));
        for wrong in ["https://127.0.0.1/", "127.0.0.1:8081", "http://", "http://127.0.0.1:x/"] {
            assert!(wrong.parse::<Server>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn secrets_are_new_at_an_exchange_that_stays() {
        let server = || Some("http://127.0.0.1:1/".parse().unwrap());
        let there = TargetOptions { target: server(), gateway: server() };
        let own = TargetOptions::default();
        assert_eq!(own.seed(1), Seed::new(1));
        assert_ne!(there.seed(1), Seed::new(1));
        assert!(own.refuse("no").is_ok() && there.refuse("no").is_err());
        assert_eq!((own.bank_host(), there.bank_host()), ("localhost", "127.0.0.1"));
    }
}
