//! Clusters start, stop, are killed and restart; standbys take over; nothing is left behind.

use std::path::Path;
use std::process::Command;

use batzen_testkit::postgres::{Cluster, ClusterOptions, Mode, fresh_database, shared};

#[test]
fn commits_survive_every_kind_of_stop() {
    let mut cluster = Cluster::start(&ClusterOptions::unsynced().set("work_mem", "3MB")).unwrap();
    assert_eq!(cluster.sql("postgres", "SHOW work_mem").unwrap(), "3MB");
    assert_eq!(cluster.sql("postgres", "SHOW wal_level").unwrap(), "logical");
    cluster.create_database("money").unwrap();
    cluster.sql("money", "CREATE TABLE t (n int)").unwrap();
    let port = cluster.port();
    for (n, end) in [Some(Mode::Fast), Some(Mode::Immediate), None, Some(Mode::Smart)].into_iter().enumerate()
    {
        cluster.sql("money", &format!("INSERT INTO t VALUES ({n})")).unwrap();
        match end {
            Some(mode) => cluster.stop(mode).unwrap(),
            None => cluster.kill9().unwrap(),
        }
        assert!(!cluster.is_running());
        assert!(cluster.sql("money", "SELECT 1").is_err());
        cluster.start_again().unwrap();
        assert_eq!(cluster.port(), port);
        assert_eq!(cluster.sql("money", "SELECT count(*) FROM t").unwrap(), (n + 1).to_string());
    }
    assert!(cluster.log().contains("database system was not properly shut down"), "{}", cluster.log());
}

#[test]
fn a_dropped_cluster_leaves_nothing_behind() {
    let cluster = Cluster::start(&ClusterOptions::unsynced()).unwrap();
    let (pid, dir) = (cluster.pid().unwrap(), cluster.data_dir());
    assert!(Path::new(&format!("/proc/{pid}")).exists() && dir.exists());
    drop(cluster);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert!(!dir.parent().unwrap().exists());
}

#[test]
fn kept_cluster_restarts_with_its_data() {
    let base = tempfile::tempdir().unwrap();
    // PostgreSQL's user needs access.
    std::fs::set_permissions(base.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
    let options = ClusterOptions { directory: Some(base.path().join("pg")), ..ClusterOptions::unsynced() };
    let first = Cluster::start(&options).unwrap();
    let url = first.create_database("kept").unwrap();
    drop(first);
    let second = Cluster::start(&options).unwrap();
    assert_eq!(second.sql("kept", "SELECT current_database()").unwrap(), "kept");
    assert_eq!(url.split('@').next(), second.url("kept").split('@').next(), "the same password");
}

#[test]
fn a_failed_start_says_why() {
    let error =
        Cluster::start(&ClusterOptions::unsynced().set("shared_buffers", "lots")).unwrap_err().to_string();
    assert!(error.contains("shared_buffers"), "{error}");
}

#[test]
fn tcp_requires_the_password() {
    let url = fresh_database();
    let psql = |url: &str| {
        Command::new("psql").args(["-X", "-A", "-t", "-d", url, "-c", "SELECT 1"]).output().unwrap()
    };
    assert_eq!(psql(&url).stdout, b"1\n");
    let (start, end) = url.split_once('@').unwrap();
    let (user, _) = start.rsplit_once(':').unwrap();
    assert!(!psql(&format!("{user}:guess@{end}")).status.success());
    assert_ne!(url, fresh_database());
    assert_eq!(shared().sql("postgres", "SHOW fsync").unwrap(), "off");
}

#[test]
fn a_synchronous_standby_has_every_commit_and_takes_over() {
    let mut primary = Cluster::start(&ClusterOptions::unsynced()).unwrap();
    primary.create_database("money").unwrap();
    primary.sql("money", "CREATE TABLE t (n int)").unwrap();
    let standby = primary.standby("second", true).unwrap();
    assert_eq!(standby.sql("postgres", "SELECT pg_is_in_recovery()").unwrap(), "t");
    let url = primary.url_or(&standby, "money");
    let psql = |sql: &str| {
        let output =
            Command::new("psql").args(["-X", "-A", "-t", "-q", "-d", &url, "-c", sql]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    for n in 0..20 {
        psql(&format!("INSERT INTO t VALUES ({n})"));
    }
    primary.kill9().unwrap();
    standby.promote().unwrap();
    assert_eq!(psql("SELECT count(*) FROM t"), "20");
    psql("INSERT INTO t VALUES (20)");
    assert_eq!(standby.sql("money", "SELECT count(*) FROM t").unwrap(), "21");
}
