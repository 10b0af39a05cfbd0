//! Dialects translate inputs and never talk to the kernel: their files do not name `knit_kernel`.

use anyhow::{Result, bail};

use super::tracked;

/// The dialects of the agent: files and folders.
const DIALECTS: [&str; 8] = [
    "crates/knit-agent/src/kubernetes.rs",
    "crates/knit-agent/src/kubernetes",
    "crates/knit-agent/src/nri.rs",
    "crates/knit-agent/src/nri",
    "crates/knit-agent/src/services.rs",
    "crates/knit-agent/src/services",
    "crates/knit-agent/src/standalone.rs",
    "crates/knit-agent/src/standalone",
];
/// The kernel layer.
const KERNEL: &str = "knit_kernel";

/// Fails with every line of a dialect that names the kernel layer.
pub fn check() -> Result<()> {
    let files = tracked(&DIALECTS, ".rs")?;
    // A dialect that was moved would otherwise pass.
    if let Some(missing) =
        DIALECTS.iter().find(|dialect| !files.iter().any(|(file, _)| file.starts_with(dialect)))
    {
        bail!("there is no dialect {missing}: correct the list in {}", file!());
    }
    let findings: Vec<String> = files
        .iter()
        .flat_map(|(file, text)| kernel_lines(text).map(move |line| format!("  {}:{line}", file.display())))
        .collect();
    if !findings.is_empty() {
        bail!(
            "dialects use {KERNEL}: read it in `knit_agent::host`, change it by an effect\n{}",
            findings.join("\n")
        );
    }
    Ok(())
}

/// The numbers of the lines that name the kernel layer.
fn kernel_lines(text: &str) -> impl Iterator<Item = usize> {
    text.lines().enumerate().filter(|(_, line)| line.contains(KERNEL)).map(|(index, _)| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_names_the_kernel_layer_is_found() {
        assert_eq!(
            kernel_lines("use knit_model::IfName;\nuse knit_kernel::Netns;\n").collect::<Vec<_>>(),
            [2]
        );
    }
}
