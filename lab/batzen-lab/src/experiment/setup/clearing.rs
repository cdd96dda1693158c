//! The switch, its ledger, and the participants that generators play.

use anyhow::Context as _;

use super::{SetUp, put_section};
use crate::experiment::placement::{Instance, metrics_authority};
use crate::experiment::topology::Role;
use crate::participants::hub::Onboarding;

/// The settlement model.
const MODEL: &str = "deferred-net";
/// The funds and the debt limit of every participant, in hundredths: so much that no limit is reached, though each is checked.
const FUNDS_CENTS: u64 = 1_000_000_000_000;

impl SetUp<'_> {
    pub(super) fn start_ledger(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let (mut text, dir) = (String::new(), self.dir(instance)?.join("data").display().to_string());
        let http = metrics_authority(instance).context("a ledger has a port for HTTP")?;
        let options = [("TCP", instance.authority()), ("HTTP", http.clone()), ("DATA_DIR", dir)];
        put_section(&mut text, "ledger", &options);
        let conf = self.configure(instance, text)?;
        self.serve(instance, &["ledger", "serve", "-c", &conf], (&http, "/ready"))
    }

    pub(super) fn start_switch(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let (mut text, dir) = (String::new(), self.dir(instance)?.join("data").display().to_string());
        let mut options = vec![
            ("BIND_TO", instance.address.clone()),
            ("PORT", instance.port().to_string()),
            ("ADMIN_PORT", instance.ports[1].to_string()),
            ("DATA_DIR", dir),
        ];
        if let Some(ledger) = self.experiment.of(Role::Ledger).pop() {
            options.push(("LEDGER", format!("tcp://{}", ledger.authority())));
        }
        put_section(&mut text, "switch", &options);
        for (name, token) in ["one", "two"].into_iter().zip(self.experiment.state.operator_tokens.clone()) {
            put_section(&mut text, &format!("switch-operator-{name}"), &[("TOKEN", token)]);
        }
        let conf = self.configure(instance, text)?;
        let admin = metrics_authority(instance).context("a switch has a port for operators")?;
        self.serve(instance, &["switch", "serve", "-c", &conf], (&admin, "/ready"))?;
        let hub = self.experiment.hub()?;
        if hub.get("/settlementModels")?.as_array().is_none_or(Vec::is_empty) {
            hub.found(&self.experiment.topology.currency, MODEL)?;
        }
        Ok(())
    }

    /// Makes the participants that a generator plays known to the switch, if there is one.
    pub(super) fn enrol(&self, instance: &Instance) -> anyhow::Result<()> {
        for (name, port) in instance.participants() {
            let participant = Onboarding {
                name: &name,
                currency: &self.experiment.topology.currency,
                callback_url: &format!("http://{}:{port}", instance.address),
                cap_cents: FUNDS_CENTS,
                funds_cents: FUNDS_CENTS,
            };
            self.experiment.hub()?.enrol(&participant).with_context(|| format!("participant {name}"))?;
        }
        Ok(())
    }
}
