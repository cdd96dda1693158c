//! The proxy before the exchange, and Prometheus: they are told when instances come and go.

use std::fmt::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::export::{STATUS, times_page};
use super::{PATIENCE, SetUp, worker_pages};
use crate::experiment::agent::{CommandLine, Request};
use crate::experiment::placement::{Instance, metrics_authority, socket_addr};
use crate::experiment::topology::{Role, Worker};

/// The names and addresses of all pages with metrics of an instance.
fn pages(instance: &Instance) -> Vec<(String, String)> {
    if instance.role == Role::Worker {
        let named =
            |(worker, authority): (Worker, _)| (format!("{}-{}", instance.name, worker.name()), authority);
        return worker_pages(instance).map(named).collect();
    }
    let own = metrics_authority(instance).map(|authority| (instance.name.clone(), authority));
    own.into_iter().chain(times_page(instance)).collect()
}

impl SetUp<'_> {
    /// Makes the certificate of the proxy, and gives it to all hosts.
    pub(super) fn prepare_secrets(&mut self) -> anyhow::Result<()> {
        let Some(proxy) = self.experiment.of(Role::Proxy).pop() else { return Ok(()) };
        let name = match proxy.ip() {
            Some(ip) => format!("IP:{ip}"),
            None => format!("DNS:{}", proxy.address),
        };
        let key = self.experiment.state.runtime_dir.join("proxy.key");
        let certificate = self.experiment.state.runtime_dir.join("proxy.pem");
        let output = std::process::Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
            .args(["-days", "3650", "-subj", "/CN=batzen-lab", "-addext", &format!("subjectAltName={name}")])
            .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout"])
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .output()
            .context("the proxy's certificate needs openssl (apt-get install openssl)")?;
        ensure!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr).trim());
        let text = std::fs::read_to_string(&certificate)?;
        for (host, agent) in &mut self.agents {
            let access = self.experiment.hosts.get(host).context("every agent has a host")?;
            agent.put(&access.dir.join("proxy.pem"), &text)?;
        }
        let text = text + &std::fs::read_to_string(&key)?;
        self.experiment.state.certificate = Some(text);
        std::fs::remove_file(&key)?;
        self.experiment.save()
    }

    /// The configuration of nginx.
    pub(super) fn proxy_config(&self, instance: &Instance) -> anyhow::Result<String> {
        let scratch = self.scratch(instance)?.display().to_string();
        let servers: String = self
            .experiment
            .of(Role::Exchange)
            .iter()
            .map(|exchange| format!("    server {} max_fails=3 fail_timeout=2s;\n", exchange.authority()))
            .collect();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .into_iter()
            .map(|name| format!("  {name}_temp_path {scratch}/{name};\n"))
            .collect();
        let status = instance.ports.get(3).map_or_else(String::new, |port| {
            format!(
                "  server {{\n    listen 127.0.0.1:{port};\n    access_log off;\n\
                 \x20   location = {STATUS} {{ stub_status; }}\n    location / {{ return 404; }}\n  }}\n"
            )
        });
        Ok(format!(
            "daemon off;\nmaster_process off;\npid {scratch}/nginx.pid;\nerror_log stderr;\n\
             worker_rlimit_nofile 65536;\nevents {{ worker_connections 16384; }}\nhttp {{\n\
             \x20 log_format times '$msec $status $request_time $upstream_response_time';\n\
             \x20 access_log /dev/stdout times buffer=32k flush=1s;\n{temporary}\
             \x20 upstream exchange {{\n{servers}    keepalive 256;\n    keepalive_timeout 20s;\n  }}\n\
             \x20 server {{\n    listen {authority} ssl;\n    ssl_certificate {scratch}/proxy.pem;\n\
             \x20   ssl_certificate_key {scratch}/proxy.pem;\n    client_max_body_size 16m;\n    keepalive_timeout 30s;\n\
             \x20   proxy_http_version 1.1;\n    proxy_set_header Connection \"\";\n    proxy_set_header Host $http_host;\n\
             \x20   proxy_set_header X-Forwarded-For $remote_addr;\n    proxy_read_timeout 660s;\n\
             \x20   proxy_buffers 16 16k;\n    proxy_max_temp_file_size 0;\n\
             \x20   location / {{ proxy_pass http://exchange; }}\n  }}\n{status}}}\n",
            authority = instance.authority()
        ))
    }

    pub(super) fn start_proxy(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let (scratch, text) = (self.scratch(instance)?, self.proxy_config(instance)?);
        let certificate = self.experiment.state.certificate.clone().context("the certificate was made")?;
        let conf = self.dir(instance)?.join("nginx.conf");
        let agent = self.agent(instance)?;
        agent.put(&scratch.join("proxy.pem"), &certificate)?;
        agent.put(&conf, &text)?;
        let nginx = agent
            .run(CommandLine::new(["sh", "-c", "PATH=$PATH:/usr/sbin command -v nginx"]))
            .context("nginx is not installed there (apt-get install nginx-light)")?;
        let mut command = CommandLine::new([nginx.trim(), "-e", "stderr", "-c", &conf.to_string_lossy()]);
        command.env.insert("TZ".to_owned(), "UTC".to_owned());
        self.start_process(instance, &instance.name.clone(), command)?;
        self.wait_listening(instance, &instance.authority())?;
        self.export_proxy(instance)
    }

    /// Waits until a process of an instance, or one of its exporters, listens.
    pub(super) fn wait_listening(&mut self, instance: &Instance, authority: &str) -> anyhow::Result<()> {
        let (deadline, address) = (Instant::now() + PATIENCE, socket_addr(authority)?);
        while TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_err() {
            self.require_running(instance)?;
            self.go_on(deadline, &format!("{authority} does not listen"))?;
        }
        Ok(())
    }

    /// Tells the proxy about the exchange's present processes. It starts again for that, since it is one process, which
    /// the kernel kills with its agent.
    ///
    /// # Errors
    /// When its agent does not answer.
    pub(in crate::experiment) fn update_proxy(&mut self) -> anyhow::Result<()> {
        for proxy in self.experiment.of(Role::Proxy) {
            let (conf, text) = (self.dir(&proxy)?.join("nginx.conf"), self.proxy_config(&proxy)?);
            let agent = self.agent(&proxy)?;
            agent.put(&conf, &text)?;
            agent.ask(&Request::Stop { name: proxy.name.clone(), signal: 15 })?;
            self.wait_ended(&proxy)?;
            self.agent(&proxy)?.ask(&Request::Again { name: proxy.name.clone() })?;
        }
        Ok(())
    }

    /// Tells Prometheus about the present instances.
    ///
    /// # Errors
    /// When its agent does not answer.
    pub(in crate::experiment) fn update_prometheus(&mut self) -> anyhow::Result<()> {
        for instance in self.experiment.of(Role::Prometheus) {
            let (path, text) = (self.dir(&instance)?.join("prometheus.yml"), self.prometheus_config());
            let agent = self.agent(&instance)?;
            agent.put(&path, &text)?;
            agent.ask(&Request::Signal { name: instance.name.clone(), signal: 1 })?;
        }
        Ok(())
    }

    pub(super) fn prometheus_config(&self) -> String {
        let mut text = "global:\n  scrape_interval: 1s\nscrape_configs:\n".to_owned();
        for role in Role::ALL {
            let targets: Vec<(String, String)> = self.experiment.of(role).iter().flat_map(pages).collect();
            if targets.is_empty() {
                continue;
            }
            let _ = writeln!(text, "  - job_name: batzen-{role}\n    static_configs:");
            for (name, target) in targets {
                let _ =
                    writeln!(text, "      - targets: ['{target}']\n        labels: {{ instance: {name} }}");
            }
        }
        let _ = writeln!(text, "  - job_name: batzen-host\n    static_configs:");
        for (host, page) in &self.experiment.state.pages {
            let _ = writeln!(text, "      - targets: ['{page}']\n        labels: {{ instance: {host} }}");
        }
        text
    }

    pub(super) fn start_prometheus(&mut self, instance: &Instance) -> anyhow::Result<()> {
        let (dir, text) = (self.dir(instance)?, self.prometheus_config());
        let conf = dir.join("prometheus.yml");
        let agent = self.agent(instance)?;
        agent.put(&conf, &text)?;
        agent
            .run(CommandLine::new(["sh", "-c", "command -v prometheus"]))
            .context("prometheus is not installed there (apt-get install prometheus)")?;
        let words = [
            "prometheus".to_owned(),
            format!("--config.file={}", conf.display()),
            format!("--storage.tsdb.path={}", dir.join("data").display()),
            format!("--web.listen-address={}", instance.authority()),
        ];
        self.start_process(instance, &instance.name.clone(), CommandLine::new(words))?;
        self.wait_until(instance, (&instance.authority(), "/-/ready"))
    }
}
