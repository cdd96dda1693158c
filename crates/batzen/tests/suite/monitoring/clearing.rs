//! A ledger and a switch that keeps its money there, as an operator starts them, and participants that keep
//! them busy.

use crate::common::Service;
use crate::crash::hub::TOKENS;

/// A ledger, a switch and its participants.
pub(crate) struct Clearing {
    /// The base URL of the ledger's pages.
    pub ledger: String,
    /// The base URL of the switch's pages.
    pub switch: String,
    participants: String,
    services: Vec<Service>,
    dir: tempfile::TempDir,
}

impl Clearing {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let data = text("books");
        let words = ["ledger", "serve", "--tcp", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data", &data];
        let (ledger, addresses) = Service::start_ready(dir.path(), "ledger", &words);
        let [tcp, http] = addresses.as_slice() else { panic!("{addresses:?}") };
        let pages = base(http);

        let config = text("switch.conf");
        let [one, two] = TOKENS;
        let lines = format!("[switch-operator-one]\nTOKEN = {one}\n[switch-operator-two]\nTOKEN = {two}\n");
        std::fs::write(&config, lines).unwrap();
        std::fs::write(dir.path().join("tokens"), TOKENS.join("\n")).unwrap();
        let data = text("transfers");
        let words = ["switch", "serve", "--config", &config, "--data", &data, "--ledger", tcp];
        let words = [&words[..], &["--port", "0", "--admin-port", "0"]].concat();
        let (switch, said) = Service::start_ready(dir.path(), "switch", &words);
        let [_, participants, _, operators] = said.as_slice() else { panic!("{said:?}") };
        Self {
            ledger: pages,
            switch: base(operators),
            participants: participants.clone(),
            services: vec![switch, ledger],
            dir,
        }
    }

    /// Starts transfers that continue until this is dropped.
    pub(crate) fn clear(&mut self) {
        let address = |url: &str| {
            url.trim_start_matches("http://").trim_end_matches('/').replace("localhost", "127.0.0.1")
        };
        let (switch, admin) = (address(&self.participants), address(&self.switch));
        let tokens = self.dir.path().join("tokens");
        let words = ["switch", "fsps", "--switch", &switch, "--admin", &admin, "--participants", "3"];
        let load = ["--tokens", tokens.to_str().unwrap(), "--rate", "20", "--duration", "10m"];
        let fsps = Service::start_lab(self.dir.path(), "fsps", &[&words[..], &load].concat());
        self.services.insert(0, fsps);
    }
}

/// Adds a slash at the end.
fn base(url: &str) -> String {
    format!("{}/", url.trim_end_matches('/'))
}
