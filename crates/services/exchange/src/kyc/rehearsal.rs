//! A rehearsal with a provider: the operator plays a user, before customers depend on it. Nothing is stored.
//!
//! The provider sends the user back to the exchange, so the rehearsal listens where the exchange would.

use std::io;
use std::sync::Arc;

use batzen_crypto::{ShortHash, fill_random};
use batzen_http::{
    Admission, Drain, Drained, Handler, Head, Method, Reach, Request, Response, Server, ServerOptions, header,
};
use batzen_protocol::ErrorCode;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Identity, KycLogic, Login, NotIdentified, make_logic};
use crate::config::{ExchangeConfig, KycLogicConfig};
use crate::service::{listen, with_port};

/// Number of results that may wait to be fetched. Further ones are refused.
const RESULTS_MAX: usize = 16;

/// Why a rehearsal cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum RehearsalError {
    /// No such section.
    #[error("no provider {0} is configured: `batzen exchange kyc test` lists all")]
    UnknownProvider(String),
    /// Officers identify the user, and no other service takes part.
    #[error("officers of the exchange decide at {0}, so there is no other service to test")]
    Manual(String),
    /// The port or socket cannot be bound.
    #[error(
        "{0}. The provider sends users back to the exchange, so stop the exchange first, or choose --port"
    )]
    Listen(io::Error),
    /// The HTTP client cannot be made.
    #[error("{0}")]
    Client(String),
}

/// A rehearsal that has begun.
pub struct Rehearsal {
    /// Where the user begins.
    pub user_url: String,
    results: mpsc::Receiver<Result<Identity, NotIdentified>>,
    server: JoinHandle<Drained>,
    drain: Drain,
}

impl Rehearsal {
    /// Begins with the provider of this section, in any case.
    ///
    /// # Errors
    /// `RehearsalError`.
    pub async fn begin(config: &ExchangeConfig, section: &str) -> Result<Self, RehearsalError> {
        let provider =
            config.kyc.providers.iter().find(|provider| provider.section.eq_ignore_ascii_case(section));
        let provider = provider.ok_or_else(|| RehearsalError::UnknownProvider(section.to_owned()))?;
        if matches!(provider.logic, KycLogicConfig::Manual { .. }) {
            return Err(RehearsalError::Manual(provider.section.clone()));
        }
        let logic = make_logic(&provider.logic).map_err(RehearsalError::Client)?;
        let server = Server::bind(listen(config)).await.map_err(RehearsalError::Listen)?;
        let base_url = match server.bound().port() {
            Some(port) => with_port(&config.base_url, port),
            None => config.base_url.clone(),
        };
        // No other page can guess it.
        let mut state = [0; 32];
        fill_random(&mut state);
        let (sender, results) = mpsc::channel(RESULTS_MAX);
        let stage = Stage {
            logic,
            base_url,
            section: provider.section.clone(),
            state: ShortHash::from_bytes(state),
            results: sender,
        };
        let user_url =
            stage.logic.login_url(stage.login()).expect("a provider that is not manual has a page");
        let drain = Drain::new();
        let server = tokio::spawn(server.serve(Arc::new(stage), ServerOptions::default(), drain.clone()));
        Ok(Self { user_url, results, server, drain })
    }

    /// Waits until the user comes back from the provider. A user who was not identified may try again, so there may
    /// be several results.
    pub async fn result(&mut self) -> Result<Identity, NotIdentified> {
        let result = self.results.recv().await;
        result.expect("the server, which holds a sender, ends after self")
    }

    /// Answers the browsers that still wait, and ends.
    pub async fn end(self) {
        self.drain.trigger();
        if let Err(error) = self.server.await {
            tracing::error!(%error, "HTTP server ended abnormally");
        }
    }
}

/// The state that the provider's redirection finds.
struct Stage {
    logic: Box<dyn KycLogic>,
    base_url: String,
    section: String,
    state: ShortHash,
    results: mpsc::Sender<Result<Identity, NotIdentified>>,
}

impl Stage {
    fn login(&self) -> Login<'_> {
        Login { base_url: &self.base_url, section: &self.section, state: self.state }
    }

    async fn proof(&self, request: &Request) -> Response {
        let Ok(place) = self.results.try_reserve() else {
            return crate::api::FAILURES.busy();
        };
        let result = self.logic.prove(self.login(), &request.head).await;
        let response = match &result {
            Ok(identity) => Response::empty(303).with_header(header::LOCATION, &identity.next_url),
            Err(problem) => Response::text(403, format!("Nobody was identified: {problem}.\n")),
        };
        place.send(result);
        response
    }
}

impl Handler for Stage {
    /// The provider's page leads the user here.
    fn admit(&self, _: &Head) -> Result<Admission, Response> {
        Ok(Admission { reach: Reach::Page, ..Admission::default() })
    }

    async fn handle(&self, request: Request) -> Response {
        let is_proof = request.method == Method::GET
            && request.segment_count() == 2
            && request.segment(0) == "kyc-proof"
            && request.segment(1).eq_ignore_ascii_case(&self.section);
        if !is_proof {
            return Response::error(ErrorCode::GENERIC_ENDPOINT_UNKNOWN, "");
        }
        match request.query_required::<ShortHash>("state") {
            Ok(state) if state == self.state => self.proof(&request).await,
            Ok(_) => Response::error(ErrorCode::EXCHANGE_KYC_PROOF_REQUEST_UNKNOWN, ""),
            Err(response) => response,
        }
    }
}
