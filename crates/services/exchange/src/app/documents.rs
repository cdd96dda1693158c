//! Legal documents in several languages and formats, and the choice among them.

use std::path::Path;

/// Served when the operator has configured no terms of service.
pub(crate) const BUILT_IN_TERMS: &str = "\
Terms of service

The operator of this exchange has not published terms of service.
Coins are digital cash: whoever loses them, loses the money.
";

/// Served when the operator has configured no privacy policy.
pub(crate) const BUILT_IN_PRIVACY: &str = "\
Privacy policy

The operator of this exchange has not published a privacy policy.
Payments with coins do not tell this exchange who pays.
";

/// File name extensions that are served, with MIME type and priority (the highest wins when nothing else
/// decides).
const TYPES: [(&str, &str, u8); 10] = [
    ("html", "text/html", 100),
    ("htm", "text/html", 99),
    ("txt", "text/plain", 50),
    ("md", "text/markdown", 50),
    ("pdf", "application/pdf", 25),
    ("epub", "application/epub+zip", 10),
    ("xml", "text/xml", 10),
    ("jpg", "image/jpeg", 0),
    ("png", "image/png", 0),
    ("gif", "image/gif", 0),
];

/// Larger documents are not loaded, because documents stay in memory and anybody may fetch them.
const DOCUMENT_SIZE_MAX: u64 = 16 * 1024 * 1024;

/// One document in one language and one format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Document {
    /// Language tag: the name of the directory.
    pub(crate) language: String,
    /// MIME type without parameters (wallets compare it exactly).
    pub(crate) mime: &'static str,
    priority: u8,
    /// The text as stored.
    pub(crate) body: Vec<u8>,
}

/// All versions of one legal text (terms of service or privacy policy) under one version tag.
#[derive(Clone, Debug)]
pub(crate) struct Documents {
    etag: String,
    documents: Vec<Document>,
}

/// A range of a header with its quality in thousandths.
struct Range<'a> {
    name: &'a str,
    quality: u16,
}

/// Splits `a;q=0.5, b` into ranges, with the highest quality first. Ranges of quality zero are kept because
/// they exclude types.
fn ranges(header: &str) -> Vec<Range<'_>> {
    header
        .split(',')
        .filter_map(|part| {
            let mut fields = part.split(';').map(str::trim);
            let name = fields.next().filter(|name| !name.is_empty())?;
            let quality = fields
                .find_map(|field| field.strip_prefix("q=").or_else(|| field.strip_prefix("Q=")))
                .and_then(|text| text.trim().parse::<f32>().ok())
                .map_or(1.0, |quality| quality.clamp(0.0, 1.0));
            // Quality values have at most three digits.
            Some(Range { name, quality: (quality * 1000.0) as u16 })
        })
        .collect()
}

/// Rates a MIME type: the quality of the most specific range that matches, 0 for none.
fn mime_quality(accept: &[Range<'_>], mime: &str) -> u16 {
    let (kind, _) = mime.split_once('/').expect("the table has types with a slash");
    let mut best = (0u8, 0u16);
    for range in accept {
        let specificity = if range.name.eq_ignore_ascii_case(mime) {
            3
        } else if range.name == "*/*" || range.name == "*" {
            1
        } else if let Some((wanted, "*")) = range.name.split_once('/')
            && wanted.eq_ignore_ascii_case(kind)
        {
            2
        } else {
            continue;
        };
        if (specificity, range.quality) > best {
            best = (specificity, range.quality);
        }
    }
    best.1
}

/// Rates a language, 0 if it does not fit. `de` fits `de-CH` and vice versa; the exact tag fits better.
fn language_quality(wanted: &[Range<'_>], language: &str) -> u32 {
    let primary = |tag: &str| tag.split(['-', '_']).next().unwrap_or_default().to_ascii_lowercase();
    wanted
        .iter()
        .filter(|range| range.quality > 0)
        .filter_map(|range| {
            let specificity = if range.name.eq_ignore_ascii_case(language) {
                2
            } else if range.name == "*" {
                0
            } else if primary(range.name) == primary(language) {
                1
            } else {
                return None;
            };
            Some(u32::from(range.quality) * 4 + specificity)
        })
        .max()
        .unwrap_or(0)
}

impl Documents {
    /// A single built-in text, for exchanges without configured documents, since wallets insist on an answer
    /// with a tag.
    pub(crate) fn built_in(etag: &str, text: &str) -> Self {
        let document = Document {
            language: "en".into(),
            mime: "text/plain",
            priority: 50,
            body: text.as_bytes().to_vec(),
        };
        Self { etag: etag.into(), documents: vec![document] }
    }

    /// Loads every `DIRECTORY/LANGUAGE/ETAG.EXTENSION`. If there is none, serves the built-in `text`.
    ///
    /// # Errors
    /// When a file that has the right name cannot be read; a missing directory is not an error.
    pub(crate) fn load(directory: &Path, etag: &str, text: &str) -> std::io::Result<Self> {
        let mut documents = Vec::new();
        let languages = match std::fs::read_dir(directory) {
            Ok(languages) => languages,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::built_in(etag, text));
            }
            Err(error) => return Err(error),
        };
        for language in languages {
            let language = language?;
            let Ok(name) = language.file_name().into_string() else { continue };
            if !language.path().is_dir() {
                continue;
            }
            for (extension, mime, priority) in TYPES {
                let path = language.path().join(format!("{etag}.{extension}"));
                let Ok(metadata) = std::fs::metadata(&path) else { continue };
                if metadata.len() > DOCUMENT_SIZE_MAX {
                    return Err(std::io::Error::other(format!(
                        "{} is too large to be served",
                        path.display()
                    )));
                }
                documents.push(Document {
                    language: name.clone(),
                    mime,
                    priority,
                    body: std::fs::read(&path)?,
                });
            }
        }
        if documents.is_empty() {
            return Ok(Self::built_in(etag, text));
        }
        // The order of directory entries is arbitrary; the order of answers should not be.
        documents.sort_by(|a, b| b.priority.cmp(&a.priority).then_with(|| a.language.cmp(&b.language)));
        Ok(Self { etag: etag.into(), documents })
    }

    /// The version tag, for the unquoted `ETag` header.
    pub(crate) fn etag(&self) -> &str {
        &self.etag
    }

    /// The document that fits the two headers best, and the languages of all documents of acceptable type.
    /// There is always one: when no type is acceptable, the one with the highest type priority.
    pub(crate) fn select(&self, accept: Option<&str>, accept_language: Option<&str>) -> (&Document, String) {
        let accept = ranges(accept.unwrap_or("text/html"));
        let wanted = ranges(accept_language.unwrap_or("en"));
        let acceptable: Vec<&Document> =
            self.documents.iter().filter(|document| mime_quality(&accept, document.mime) > 0).collect();
        let considered: Vec<&Document> =
            if acceptable.is_empty() { self.documents.iter().collect() } else { acceptable.clone() };
        let rank = |document: &&&Document| {
            let language = language_quality(&wanted, &document.language);
            if acceptable.is_empty() {
                (u32::from(document.priority), language, 0, false)
            } else {
                let english = document.language == "en";
                (
                    language,
                    u32::from(mime_quality(&accept, document.mime)),
                    u32::from(document.priority),
                    english,
                )
            }
        };
        // `max_by_key` prefers the last of equals; the list is sorted best first.
        let best = considered.iter().rev().max_by_key(rank).expect("there is at least one document");
        let languages: Vec<&str> = considered.iter().map(|document| document.language.as_str()).collect();
        (best, languages.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library() -> (tempfile::TempDir, Documents) {
        let directory = tempfile::tempdir().unwrap();
        for (language, extension) in [
            ("en", "html"),
            ("en", "txt"),
            ("en", "md"),
            ("de", "txt"),
            ("de", "html"),
            ("fr", "pdf"),
            ("pt-BR", "txt"),
        ] {
            let path = directory.path().join(language);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join(format!("tos-v1.{extension}")), format!("{language} {extension}"))
                .unwrap();
            std::fs::write(path.join(format!("tos-v0.{extension}")), "old").unwrap();
        }
        std::fs::write(directory.path().join("README"), "not a language").unwrap();
        let documents = Documents::load(directory.path(), "tos-v1", "built in").unwrap();
        (directory, documents)
    }

    #[test]
    fn negotiation_table() {
        let (_directory, documents) = library();
        for (accept, language, expected) in [
            (None, None, "en html"),
            (Some("text/html"), Some("de"), "de html"),
            (Some("text/plain"), None, "en txt"),
            (Some("text/plain"), Some("de-AT, en;q=0.5"), "de txt"),
            (Some("text/plain"), Some("en;q=0.5, de;q=0.4"), "en txt"),
            (Some("text/plain"), Some("pt"), "pt-BR txt"),
            (Some("text/plain"), Some("ja"), "en txt"),
            (Some("text/*"), Some("de"), "de html"),
            (Some("*/*"), Some("fr"), "fr pdf"),
            (Some("*/*"), None, "en html"),
            (Some("TEXT/PLAIN"), Some("DE"), "de txt"),
            (Some("application/pdf"), Some("en"), "fr pdf"),
            (Some("text/html;q=0.2, text/plain"), Some("en"), "en txt"),
            (Some("text/html;q=0, */*"), Some("de"), "de txt"),
            (Some("application/json"), Some("de"), "de html"),
            (Some(""), None, "en html"),
        ] {
            let (document, _) = documents.select(accept, language);
            let found = String::from_utf8(document.body.clone()).unwrap();
            assert_eq!(found, expected, "Accept {accept:?}, Accept-Language {language:?}");
        }
        let (_, languages) = documents.select(Some("text/plain"), None);
        let mut languages: Vec<&str> = languages.split(' ').collect();
        languages.sort_unstable();
        assert_eq!(languages, ["de", "en", "pt-BR"]);
    }

    #[test]
    fn without_configured_documents_the_built_in_text_is_served() {
        let directory = tempfile::tempdir().unwrap();
        let documents = Documents::load(&directory.path().join("missing"), "tos-v0", "built in").unwrap();
        let (document, languages) = documents.select(Some("text/html"), Some("de"));
        assert_eq!((document.mime, document.body.as_slice()), ("text/plain", b"built in".as_slice()));
        assert_eq!(languages, "en");
        assert_eq!(documents.etag(), "tos-v0");
    }
}
