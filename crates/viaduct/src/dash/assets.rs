//! Files of the page, which are part of the program. uPlot is vendored unaltered, with its licence
//! (`assets/uplot.LICENSE`); the other files are written by hand, without a framework.

/// File of the page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asset {
    /// Path in URIs.
    pub path: &'static str,
    /// Media type.
    pub kind: &'static str,
    /// Contents.
    pub text: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// All files.
pub(super) const ASSETS: [Asset; 7] = [
    Asset { path: "/", kind: "text/html; charset=utf-8", text: include_str!("assets/index.html") },
    Asset { path: "/dash.js", kind: SCRIPT, text: include_str!("assets/dash.js") },
    Asset { path: "/dash.css", kind: STYLE, text: include_str!("assets/dash.css") },
    Asset { path: "/uplot.js", kind: SCRIPT, text: include_str!("assets/uplot.js") },
    Asset { path: "/uplot.css", kind: STYLE, text: include_str!("assets/uplot.css") },
    Asset { path: "/uplot.LICENSE", kind: TEXT, text: include_str!("assets/uplot.LICENSE") },
    Asset { path: "/icon.svg", kind: "image/svg+xml", text: include_str!("assets/icon.svg") },
];

#[cfg(test)]
mod tests {
    use ring::digest::{SHA256, digest};

    use super::*;

    /// Maximum length of the complete page, in bytes.
    const MAX_PAGE: usize = 150_000;

    fn sha256(path: &str) -> String {
        let asset = ASSETS.iter().find(|asset| asset.path == path).unwrap();
        let hash = digest(&SHA256, asset.text.as_bytes());
        hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn uplot_is_the_published_1_6_32() {
        let script = "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f";
        let style = "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04";
        assert_eq!((sha256("/uplot.js").as_str(), sha256("/uplot.css").as_str()), (script, style));
        let is_licence = |asset: &Asset| asset.text.starts_with("The MIT License");
        assert!(ASSETS.iter().any(is_licence));
    }

    #[test]
    fn the_page_is_small_and_names_no_other_host() {
        let length: usize = ASSETS.iter().map(|asset| asset.text.len()).sum();
        assert!(length <= MAX_PAGE, "{length} bytes");
        for asset in ASSETS.iter().filter(|asset| !asset.path.contains("uplot")) {
            let text = asset.text.replace("http://www.w3.org/2000/svg", "");
            for word in ["://", "innerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!text.contains(word), "{}: {word}", asset.path);
            }
        }
    }
}
