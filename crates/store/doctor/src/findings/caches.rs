//! Cache hit ratios.

use super::{Finding, Severity};
use crate::facts::{Facts, Table};
use crate::{tuning, words};

/// With fewer pages, a ratio means nothing.
const ENOUGH: u64 = 10_000;

/// Enough pages in a sample of seconds to judge the current state.
const ENOUGH_NOW: u64 = 2_000;

/// Below the first there are too many disk reads; above the second all is fine.
const POOR: f64 = 0.90;
const GOOD: f64 = 0.99;

/// Seconds after start in which misses are due to a cold cache.
const COLD: f64 = 600.0;

/// Applies the rules.
pub(crate) fn find(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(database) = facts.database() else { return };
    let blocks = database.blocks_hit + database.blocks_read;
    let age = words::span(facts.statistics_age());
    if blocks < ENOUGH {
        let measured = format!("only {} pages were read in {age}", words::count(blocks));
        found.push(Finding::ok("cache_hits", "Too few reads to say how well the cache works", measured));
        return;
    }
    let ratio = database.blocks_hit as f64 / blocks as f64;
    let rates = facts.rates();
    let now = rates.hit.filter(|_| rates.blocks >= ENOUGH_NOW);
    let mut measured = format!("{} of {} pages in {age}", words::share(ratio), words::count(blocks));
    if let Some(now) = now {
        measured += &format!("; {} in the last {}", words::share(now), words::span(rates.seconds));
    }
    // Ignore past misses and a cold start if the cache works now.
    let is_good = ratio >= GOOD || now.is_some_and(|now| now >= GOOD);
    if is_good {
        found.push(Finding::ok("cache_hits", "Reads are answered from the cache", measured));
        return;
    }
    let size = facts.settings.bytes("shared_buffers");
    let advised = facts.machine.memory.map(tuning::shared_buffers);
    let too_small =
        size.zip(advised).filter(|(size, advised)| size * 2 < *advised).map(|(_, advised)| advised);
    if too_small.is_none() && facts.server.uptime < COLD {
        let title = "The server began minutes ago, and its cache is filling";
        found.push(Finding::ok("cache_hits", title, measured));
        return;
    }
    let severity = if now.unwrap_or(ratio).max(ratio) < POOR { Severity::Warning } else { Severity::Notice };
    let worst: Vec<_> = worst(&facts.tables)
        .into_iter()
        .map(|(name, ratio, read)| {
            format!("{name} {} ({} pages read)", words::share(ratio), words::count(read))
        })
        .collect();
    if !worst.is_empty() {
        measured += &format!("; worst: {}", worst.join(", "));
    }
    let mut finding = Finding::new("cache_hits", severity, "Many reads are not answered from shared_buffers", measured)
        .because("Each miss is a read from the operating system, often from the disk: a hundred to a thousand times slower.");
    finding = finding.type_this(match too_small {
        Some(advised) => super::set(facts, "shared_buffers", &words::setting_bytes(advised)),
        None => "SELECT relname, heap_blks_read, idx_blks_read FROM pg_statio_user_tables ORDER BY heap_blks_read + idx_blks_read DESC LIMIT 10;   -- what is read; then an index, or more memory".to_owned(),
    });
    found.push(finding);
}

/// The three tables (partitions together) with the most cache misses: name, ratio, pages.
fn worst(tables: &[Table]) -> Vec<(String, f64, u64)> {
    let mut sums: Vec<(String, u64, u64)> = super::tables::by_root(tables)
        .into_iter()
        .map(|(name, parts)| {
            let hit = parts.iter().map(|table| table.heap_hit + table.index_hit).sum();
            (name, hit, parts.iter().map(|table| table.heap_read + table.index_read).sum())
        })
        .filter(|(_, hit, read): &(String, u64, u64)| hit + read >= 1_000 && *read > 0)
        .collect();
    sums.sort_by_key(|(_, _, read)| std::cmp::Reverse(*read));
    sums.truncate(3);
    sums.into_iter().map(|(name, hit, read)| (name, hit as f64 / (hit + read) as f64, read)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{settings, verdict};
    use crate::facts::{Counters, Database, Facts, Server};
    use crate::findings::Severity;

    fn facts(hit: u64, read: u64) -> Facts {
        Facts {
            server: Server { database: "d".to_owned(), uptime: 7200.0, ..Server::default() },
            databases: vec![Database {
                name: "d".to_owned(),
                blocks_hit: hit,
                blocks_read: read,
                ..Database::default()
            }],
            ..Facts::default()
        }
    }

    #[test]
    fn too_few_reads_are_reported() {
        let finding = verdict(&facts(10, 9_000), "cache_hits").unwrap();
        assert_eq!(finding.severity, Severity::Ok);
        assert!(finding.title.contains("Too few"), "{finding:?}");
        assert_eq!(verdict(&facts(0, 0), "cache_hits").unwrap().severity, Severity::Ok);
    }

    #[test]
    fn poor_ratio_names_the_setting_that_is_too_small() {
        let mut facts = facts(35, 9_965_000);
        facts.settings = settings(&[("shared_buffers", "16384", "8kB", "postmaster")]);
        facts.machine.memory = Some(16 << 30);
        let finding = verdict(&facts, "cache_hits").unwrap();
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.remedy[0].contains("shared_buffers = '4GB'"), "{finding:?}");
        facts.server.uptime = 60.0;
        assert_eq!(
            verdict(&facts, "cache_hits").unwrap().severity,
            Severity::Warning,
            "too small is too small"
        );
        facts.settings = settings(&[("shared_buffers", "524288", "8kB", "postmaster")]);
        assert_eq!(verdict(&facts, "cache_hits").unwrap().severity, Severity::Ok, "new, and filling");
        assert_eq!(verdict(&self::facts(95_000, 5_000), "cache_hits").unwrap().severity, Severity::Notice);
        assert_eq!(verdict(&self::facts(99_500, 500), "cache_hits").unwrap().severity, Severity::Ok);
    }

    #[test]
    fn past_misses_are_ignored_if_the_cache_works_now() {
        let mut facts = facts(50_000, 50_000);
        facts.before = Counters { at: 1.0, ..Counters::default() };
        facts.after = Counters { at: 3.0, blocks_hit: 9_990, blocks_read: 10, ..Counters::default() };
        assert_eq!(verdict(&facts, "cache_hits").unwrap().severity, Severity::Ok);
        facts.after.blocks_hit = 90;
        assert_eq!(
            verdict(&facts, "cache_hits").unwrap().severity,
            Severity::Warning,
            "100 pages prove nothing"
        );
    }
}
