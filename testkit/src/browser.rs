//! A headless Chromium, driven by WebDriver: opens pages, runs scripts, reads the console, takes screenshots,
//! and checks accessibility.
//!
//! WebDriver is only a few JSON requests, so this uses our own HTTP client rather than a library.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use batzen_http::client::{Client, ClientOptions, Method};
use serde_json::{Value, json};

use crate::process::PATIENCE;

/// The version of axe-core that `make needs-test` installs.
const AXE_VERSION: &str = "4.14.1";

/// Passes serious and critical violations to the driver, one text per rule.
const AXE_RUN: &str = r#"
    const done = arguments[arguments.length - 1];
    const node = (one) => "  " + one.html.slice(0, 200) + "\n    " + one.failureSummary.replace(/\n/g, " ");
    const rule = (one) => one.impact + " " + one.id + ": " + one.help + "\n" + one.nodes.map(node).join("\n");
    const isGrave = (one) => ["serious", "critical"].includes(one.impact);
    axe.run(document, { resultTypes: ["violations"] }).then(
        (found) => done(found.violations.filter(isGrave).map(rule)),
        (error) => done(["axe-core failed: " + error]));
"#;

const FLAGS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
];

/// A browser with one page and an empty profile. It ends when this is dropped.
pub struct Browser {
    driver: Child,
    runtime: tokio::runtime::Runtime,
    client: Client,
    session: String,
    _home: tempfile::TempDir,
}

impl Browser {
    /// Starts the browser. If it is missing, fails with instructions to install it.
    pub fn start() -> Self {
        let home = tempfile::Builder::new().prefix("batzen-browser-").tempdir().unwrap();
        let log = home.path().join("driver.log");
        let out = File::create(&log).unwrap();
        let driver = Command::new("chromedriver")
            .arg("--port=0")
            .env("HOME", home.path())
            .stdin(Stdio::null())
            .stdout(out.try_clone().unwrap())
            .stderr(out)
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "chromedriver: {error}: this test needs a browser; `make needs-test` installs it \
                     (Debian packages chromium and chromium-driver)"
                )
            });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = {
            let _inside = runtime.enter();
            Client::new(&ClientOptions { timeout: PATIENCE, ..ClientOptions::default() }).unwrap()
        };
        let mut browser = Self { driver, runtime, client, session: String::new(), _home: home };
        let port = browser.port(&log);
        let mut arguments: Vec<String> = FLAGS.map(str::to_owned).to_vec();
        arguments.push(format!("--user-data-dir={}", browser._home.path().join("profile").display()));
        let options = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let base = format!("http://127.0.0.1:{port}/session");
        let session = browser.call(Method::POST, &base, &options);
        let id = session["sessionId"].as_str().unwrap_or_else(|| panic!("no session: {session}"));
        browser.session = format!("{base}/{id}");
        browser
    }

    /// The port that the driver has chosen, from its first lines of output.
    fn port(&mut self, log: &Path) -> u16 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = std::fs::read_to_string(log).unwrap();
            let found = text.split("successfully on port ").nth(1).and_then(|rest| rest.split('.').next());
            if let Some(port) = found.and_then(|port| port.trim().parse().ok()) {
                return port;
            }
            assert!(self.driver.try_wait().unwrap().is_none(), "chromedriver ended: {text}");
            assert!(Instant::now() < deadline, "chromedriver does not start: {text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn call(&self, method: Method, url: &str, body: &Value) -> Value {
        let reply = self.runtime.block_on(async {
            let call = self.client.call(method.clone(), url);
            if method == Method::POST { call.json(body).send().await } else { call.send().await }
        });
        let reply = reply.unwrap();
        let text = String::from_utf8_lossy(&reply.body);
        assert_eq!(reply.status, 200, "{url}: {text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        answer["value"].clone()
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.call(Method::POST, &format!("{}/{path}", self.session), body)
    }

    fn devtools(&self, command: &str, parameters: Value) {
        self.post("goog/cdp/execute", &json!({"cmd": command, "params": parameters}));
    }

    /// Opens a page and waits until it is loaded.
    pub fn open(&self, url: &str) {
        self.post("url", &json!({"url": url}));
    }

    /// Sets the size of the page in CSS pixels. A phone's pages are laid out as on a phone.
    pub fn resize(&self, width: u32, height: u32, is_phone: bool) {
        let parameters =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone});
        self.devtools("Emulation.setDeviceMetricsOverride", parameters);
    }

    /// Sets whether the reader prefers a dark colour scheme.
    pub(crate) fn dark(&self, dark: bool) {
        let value = if dark { "dark" } else { "light" };
        let feature = json!({"name": "prefers-color-scheme", "value": value});
        self.devtools("Emulation.setEmulatedMedia", json!({"features": [feature]}));
    }

    /// Runs a script in the page: the body of a function.
    pub fn run(&self, script: &str) -> Value {
        self.post("execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until an expression is true in the page.
    pub fn until(&self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.run(&format!("return Boolean({expression})")) != Value::Bool(true) {
            if Instant::now() > deadline {
                let text = self.run("return document.body.innerText");
                panic!("never true: {expression}\n{text}\n{:?}", self.console());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until an element contains a text.
    pub fn until_text(&self, id: &str, text: &str) {
        self.until(&format!("document.getElementById('{id}')?.innerText.includes({})", json!(text)));
    }

    pub fn until_shown(&self, id: &str) {
        self.until(&format!("document.getElementById('{id}')?.offsetParent"));
    }

    /// Waits until an error is shown beside its field, which is marked for screen readers and has the focus.
    #[track_caller]
    pub fn until_error(&self, field: &str, text: &str) {
        self.until_text(&format!("{field}-error"), text);
        let input = format!("document.getElementById('{field}')");
        let told = format!(
            "return {input}.getAttribute('aria-invalid') === 'true' && document.activeElement === {input}
             && {input}.getAttribute('aria-describedby').split(' ').includes('{field}-error')"
        );
        assert_eq!(self.run(&told), json!(true), "{field}");
    }

    /// Clicks a button of our pages. A busy page ignores clicks.
    pub fn click(&self, selector: &str) {
        self.until(&format!("document.querySelector('{selector}')?.hasAttribute('aria-disabled') === false"));
        self.run(&format!("document.querySelector('{selector}').click()"));
    }

    /// Checks that the console logged nothing except requests that the service refused.
    #[track_caller]
    pub fn assert_quiet(&self) {
        let is_refusal = |line: &String| line.contains("responded with a status of 4");
        let said: Vec<String> = self.console().into_iter().filter(|line| !is_refusal(line)).collect();
        assert!(said.is_empty(), "the console says {said:?}");
    }

    /// A number from the page.
    pub fn number(&self, expression: &str) -> f64 {
        let value = self.run(&format!("return Number({expression})"));
        value.as_f64().unwrap_or_else(|| panic!("{expression} is {value}"))
    }

    /// The console's messages since the last call: level and text.
    pub fn console(&self) -> Vec<String> {
        let entries = self.post("se/log", &json!({"type": "browser"}));
        let entry = |entry: &Value| format!("{} {}", entry["level"], entry["message"]);
        entries.as_array().unwrap().iter().map(entry).collect()
    }

    /// Returns the width of the content beyond that of the page, in pixels; more than 0 means that the page
    /// scrolls sideways.
    pub fn overflow(&self) -> f64 {
        self.number("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    }

    /// Asserts that people can use the page by keyboard, with a screen reader, or with weak eyesight, as far
    /// as axe-core can check: on a desktop and on a phone, light and dark. The page must not scroll sideways.
    /// Leaves the page on a light desktop and, for developers who change it, screenshots `NAME-….png` in the directory
    /// that `BATZEN_PICTURES` names.
    pub fn audit(&self, name: &str) {
        let pictures = std::env::var_os("BATZEN_PICTURES");
        for (size, is_phone) in [("phone", true), ("desktop", false)] {
            if is_phone {
                self.resize(390, 844, true);
            } else {
                self.resize(1280, 900, false);
            }
            for (scheme, is_dark) in [("dark", true), ("light", false)] {
                self.dark(is_dark);
                let what = format!("{name}-{size}-{scheme}");
                if let Some(pictures) = &pictures {
                    self.screenshot(&Path::new(pictures).join(format!("{what}.png")));
                }
                assert_eq!(self.overflow(), 0.0, "{what} has to be scrolled sideways");
                let violations = self.axe();
                assert!(violations.is_empty(), "{what}: axe-core finds\n{}", violations.join("\n"));
            }
        }
    }

    /// The serious and critical violations that axe-core finds.
    fn axe(&self) -> Vec<String> {
        if self.run("return typeof window.axe") == "undefined" {
            self.run(&format!("{}; window.axe = axe;", axe_script()));
        }
        let found = self.post("execute/async", &json!({"script": AXE_RUN, "args": []}));
        let found = found.as_array().unwrap_or_else(|| panic!("axe-core says {found}"));
        found.iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    }

    /// Takes a screenshot of the whole page as PNG.
    fn screenshot(&self, file: &Path) {
        let size =
            "({width: document.documentElement.clientWidth, height: document.documentElement.scrollHeight})";
        let size = self.run(&format!("return {size}"));
        let clip = json!({"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1});
        let parameters = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let answer =
            self.post("goog/cdp/execute", &json!({"cmd": "Page.captureScreenshot", "params": parameters}));
        let picture = BASE64_STANDARD.decode(answer["data"].as_str().unwrap()).unwrap();
        assert!(picture.starts_with(b"\x89PNG"), "a picture");
        std::fs::write(file, picture).unwrap();
    }
}

/// axe-core, which `make needs-test` puts below the target directory.
fn axe_script() -> String {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), std::path::PathBuf::from);
    let file = target.join(format!("axe-core-{AXE_VERSION}/node_modules/axe-core/axe.min.js"));
    std::fs::read_to_string(&file).unwrap_or_else(|error| {
        panic!(
            "{}: {error}: this test needs axe-core; `make needs-test` installs it with npm",
            file.display()
        )
    })
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            // First the browser's own exit, so that it leaves nothing behind; then the driver's whole process
            // group.
            let _ = self.runtime.block_on(self.client.call(Method::DELETE, &self.session).send());
        }
        let group = format!("-{}", self.driver.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.driver.wait();
    }
}
