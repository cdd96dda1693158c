//! Encrypted connections, verified as far as `sslmode` requires.

use std::path::Path;
use std::process::Command;

use batzen_postgres::{Connection, PgError, Target};
use batzen_testkit::postgres::{Cluster, ClusterOptions, shared};

/// A self-signed certificate for 127.0.0.1 and its key. Debian's PostgreSQL depends on `openssl`.
fn certificate(dir: &Path, name: &str) -> (String, String) {
    let (cert, key) = (dir.join(format!("{name}.crt")), dir.join(format!("{name}.key")));
    let config = dir.join("openssl.cnf");
    let text = "[req]\ndistinguished_name = name\nx509_extensions = server\n[name]\n[server]\nbasicConstraints = CA:FALSE\n\
                subjectAltName = IP:127.0.0.1\n";
    std::fs::write(&config, text).unwrap();
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-subj", "/CN=test", "-config"])
        .arg(&config)
        .arg("-out")
        .arg(&cert)
        .arg("-keyout")
        .arg(&key)
        .output()
        .expect("openssl is installed with PostgreSQL");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (cert.to_str().unwrap().to_owned(), key.to_str().unwrap().to_owned())
}

fn connect(url: &str, settings: &str) -> Result<String, PgError> {
    let joint = if url.contains('?') { '&' } else { '?' };
    let mut connection = Connection::open(&Target::parse(&format!("{url}{joint}{settings}"))?)?;
    // Larger than a TLS record, in both directions.
    let long = "x".repeat(100_000);
    let rows = connection.query_text(&format!("SELECT '{long}'"))?;
    assert_eq!(rows[0][0].as_deref(), Some(long.as_str()));
    let rows = connection
        .query_text("SELECT coalesce(version, 'none') FROM pg_stat_ssl WHERE pid = pg_backend_pid()")?;
    Ok(rows[0][0].clone().unwrap())
}

#[test]
fn connections_are_encrypted_and_verified() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = certificate(dir.path(), "server");
    let (other, _) = certificate(dir.path(), "other");
    let cluster = Cluster::start(&ClusterOptions::default()).unwrap();
    let data = cluster.data_dir();
    for (from, to) in [(&cert, "server.crt"), (&key, "server.key")] {
        let to = data.join(to);
        std::fs::copy(from, &to).unwrap();
        // The server requires a key that it owns and that no other user can read.
        let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&data).unwrap());
        std::os::unix::fs::chown(&to, Some(owner), None).unwrap();
        std::fs::set_permissions(&to, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    }
    cluster.set("ssl", "on").unwrap();
    let url = cluster.create_database("tls").unwrap();
    // The setting takes effect after a moment, so each connection asks again.
    let encrypted = |settings: &str| connect(&url, settings);
    let mut version = String::new();
    for _ in 0..1_200 {
        version = encrypted("sslmode=prefer").unwrap();
        if version != "none" {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(version, "TLSv1.3");
    assert_eq!(encrypted("sslmode=disable").unwrap(), "none");
    assert_eq!(encrypted("sslmode=require").unwrap(), "TLSv1.3");
    assert_eq!(encrypted(&format!("sslmode=verify-full&sslrootcert={cert}")).unwrap(), "TLSv1.3");
    for mode in ["require", "verify-ca", "verify-full"] {
        let refused = encrypted(&format!("sslmode={mode}&sslrootcert={other}")).unwrap_err();
        assert!(refused.to_string().contains("certificate"), "{refused}");
    }
    // With a name that is not in the certificate.
    let named = url.replace("127.0.0.1", "localhost");
    assert_ne!(named, url);
    assert_eq!(connect(&named, &format!("sslmode=verify-ca&sslrootcert={cert}")).unwrap(), "TLSv1.3");
    assert!(connect(&named, &format!("sslmode=verify-full&sslrootcert={cert}")).is_err());
    // A server without TLS, although it is required.
    let plain = shared().create_database("plain").unwrap();
    assert!(connect(&plain, "sslmode=require").is_err());
}
