"""Dependency audit: are there known vulnerabilities in what the environments have installed?

    python .ci/audit.py [site-packages folder …]

A service that cannot be reached, or a mirror that has packages but no vulnerability data, would
make every audit come out clean. So the service is first asked about a release that is known to be
vulnerable. Only if it says so are the environments audited, and only then can a finding fail the
run; otherwise one clear line says that nothing was audited.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CANARY = "requests==2.19.0"
SERVICES = ("pypi", "osv")
TIMEOUT_SECONDS = 300


def main(folders: list[str]) -> int:
    """Audit the folders; 1 if one has a known vulnerability."""
    service = next((name for name in SERVICES if knows_the_canary(name)), None)
    if service is None:
        print(
            f"audit: NOT AUDITED. No vulnerability service ({', '.join(SERVICES)}) names the known "
            f"vulnerabilities of {CANARY}: none is reachable from here, or it is a mirror without "
            "that data. Run 'make audit' where pypi.org or api.osv.dev can be reached."
        )
        return 0
    found = 0
    for folder in folders:
        dependencies = pip_audit("--service", service, "--path", folder)
        if dependencies is None:
            print(f"audit: NOT AUDITED: {folder} (the service failed meanwhile)")
            continue
        skipped = [entry for entry in dependencies if "skip_reason" in entry]
        print(
            f"audit: {folder}: {len(dependencies) - len(skipped)} packages asked about, "
            f"{len(skipped)} unknown to the service ({service})"
        )
        for entry in dependencies:
            for vulnerability in entry.get("vulns", ()):
                found += 1
                fixed = ", ".join(vulnerability.get("fix_versions", ())) or "no release yet"
                print(
                    f"audit: {entry['name']} {entry['version']}: {vulnerability['id']}, "
                    f"fixed in: {fixed}"
                )
    return 1 if found else 0


def knows_the_canary(service: str) -> bool:
    """Whether a service names a vulnerability that has been known for years."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requirements.txt"
        file.write_text(CANARY + "\n")
        found = pip_audit(
            "--service", service, "--requirement", str(file), "--no-deps", "--disable-pip"
        )
    return any(entry.get("vulns") for entry in found or ())


def pip_audit(*arguments: str) -> list[dict[str, Any]] | None:
    """What pip-audit finds, a dictionary for each package; ``None`` if it could not ask."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        dependencies: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError):
        return None
    return dependencies


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
