"""Forms of secrets, drawn at random so that no file of this repository has one; `python tests/hub/secret_forms.py`.

The program prints which are recognized by Kingfisher's rules alone, by those of this package alone, and by a search.
"""

import base64
import json
import random
import string
import tempfile
import uuid
from pathlib import Path

_UPPER, _DIGITS, _HEX = string.ascii_uppercase, string.digits, "0123456789abcdef"
_LETTERS = string.ascii_letters + _DIGITS
_URL_SAFE = _LETTERS + "_-"


def secret_forms(seed: int = 20) -> dict[str, str]:
    """A line, or a few, with a secret of each form."""
    generator = random.Random(seed)

    def draw(length: int, alphabet: str = _LETTERS) -> str:
        while True:  # until it has a digit, as nearly all do
            text = "".join(generator.choice(alphabet) for _ in range(length))
            if any(character in _DIGITS for character in text):
                return text

    def key(name: str) -> str:
        lines = [draw(64, _LETTERS + "+/") for _ in range(12)]
        return "\n".join([f"-----BEGIN {name}-----", *lines, f"-----END {name}-----"])

    def web_token() -> str:
        parts = [json.dumps(part).encode() for part in ({"alg": "HS256", "typ": "JWT"}, {"sub": draw(10, _DIGITS)})]
        parts.append(generator.randbytes(32))
        return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)

    def base64_of(count: int) -> str:
        return base64.b64encode(generator.randbytes(count)).decode()

    def identifier() -> str:
        return str(uuid.UUID(int=generator.getrandbits(128), version=4))

    neptune = json.dumps({"api_address": "https://app.neptune.ai", "api_key": identifier()}).encode()
    return {
        "Hugging Face user": f"hf_{draw(34)}",
        "Hugging Face organization": f"api_org_{draw(34)}",
        "Weights & Biases, new": f"wandb_v1_{draw(77)}",
        "Weights & Biases, by name": f"WANDB_API_KEY={draw(40, _HEX)}",
        "Comet, by name": f"COMET_API_KEY={draw(25)}",
        "Neptune, by name": f"NEPTUNE_API_TOKEN={base64.b64encode(neptune).decode()}",
        "Kaggle": json.dumps({"username": "ada", "key": draw(32, _HEX)}),
        "GitHub personal": f"ghp_{draw(36)}",
        "GitHub OAuth": f"gho_{draw(36)}",
        "GitHub server": f"ghs_{draw(36)}",
        "GitHub fine-grained": f"github_pat_{draw(22)}_{draw(59)}",
        "GitLab personal": f"glpat-{draw(20)}",
        "GitLab deploy": f"gldt-{draw(20)}",
        "GitLab runner": f"glrt-{draw(20)}",
        "npm": f"npm_{draw(36)}",
        "npm in .npmrc": f"//registry.example.org/:_authToken={identifier()}",
        "PyPI": f"pypi-AgEIcHlwaS5vcmc{draw(150, _URL_SAFE)}",
        "Docker Hub": f"dckr_pat_{draw(27, _URL_SAFE)}",
        "OpenAI, old": f"sk-{draw(20)}T3BlbkFJ{draw(20)}",
        "OpenAI project": f"sk-proj-{draw(74, _URL_SAFE)}T3BlbkFJ{draw(74, _URL_SAFE)}",
        "Anthropic": f"sk-ant-api03-{draw(93, _URL_SAFE)}AA",
        "OpenRouter": f"sk-or-v1-{draw(64, _HEX)}",
        "Groq": f"gsk_{draw(52)}",
        "xAI": f"xai-{draw(80)}",
        "Perplexity": f"pplx-{draw(48)}",
        "Replicate": f"r8_{draw(37)}",
        "NVIDIA": f"nvapi-{draw(64, _URL_SAFE)}",
        "LangSmith": f"lsv2_pt_{draw(32, _HEX)}_{draw(10, _HEX)}",
        "Together": f"tgp_v1_{draw(43, _URL_SAFE)}",
        "Fireworks": f"fw_{draw(22)}",
        "Pinecone": f"pcsk_{draw(5)}_{draw(63)}",
        "RunPod": f"rpa_{draw(46, _UPPER + _DIGITS)}",
        "Google API key": f"AIza{draw(35, _URL_SAFE)}",
        "Google OAuth access": f"ya29.{draw(120, _URL_SAFE)}",
        "Google OAuth client": f"GOCSPX-{draw(28, _URL_SAFE)}",
        "Google service account": json.dumps({"type": "service_account", "private_key": key("PRIVATE KEY")}),
        "AWS access key": f"AKIA{draw(16, _UPPER + '234567')}",
        "AWS temporary key": f"ASIA{draw(16, _UPPER + '234567')}",
        "AWS secret key": f"aws_secret_access_key = {draw(40, _LETTERS + '/+')}",
        "Azure storage": f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={base64_of(64)}",
        "Azure client secret": f"AZURE_CLIENT_SECRET={draw(3)}8Q~{draw(34)}",
        "Azure shared access": f"https://a.blob.core.windows.net/c?sv=2022-11-02&sp=rl&sig={draw(43)}%3D",
        "Databricks": f"dapi{draw(32, _HEX)}",
        "DigitalOcean": f"dop_v1_{draw(64, _HEX)}",
        "Cloudflare, by name": f"CLOUDFLARE_API_TOKEN: {draw(40, _URL_SAFE)}",
        "Heroku": f"HRKU-AA{draw(58, _URL_SAFE)}",
        "Vault": f"hvs.{draw(95, _URL_SAFE)}",
        "Terraform": f"{draw(14)}.atlasv1.{draw(67, _URL_SAFE)}",
        "Doppler": f"dp.pt.{draw(43)}",
        "Supabase": f"sbp_{draw(40, _HEX)}",
        "New Relic": f"NRAK-{draw(27, _UPPER + _DIGITS)}",
        "Grafana": f"glsa_{draw(32)}_{draw(8, _HEX)}",
        "Sentry": f"sntryu_{draw(64, _HEX)}",
        "Stripe": f"sk_live_{draw(24)}",
        "Stripe, restricted": f"rk_live_{draw(24)}",
        "Stripe web hook": f"whsec_{draw(32)}",
        "Shopify": f"shpat_{draw(32, _HEX)}",
        "Square": f"sq0atp-{draw(22)}",
        "Slack bot": f"xoxb-{draw(12, _DIGITS)}-{draw(13, _DIGITS)}-{draw(24)}",
        "Slack app": f"xapp-1-{draw(11, _UPPER + _DIGITS)}-{draw(13, _DIGITS)}-{draw(64, _HEX)}",
        "Slack web hook": f"https://hooks.slack.com/services/T{draw(8, _DIGITS)}/B{draw(10, _DIGITS)}/{draw(24)}",
        "Discord web hook": f"https://discord.com/api/webhooks/{draw(18, _DIGITS)}/{draw(68, _URL_SAFE)}",
        "Discord bot": f"M{draw(23)}.{draw(6)}.{draw(27)}",
        "Telegram bot": f"{draw(10, '123456789')}:AA{draw(33, _URL_SAFE)}",
        "Twilio": f"SK{draw(32, _HEX)}",
        "SendGrid": f"SG.{draw(22)}.{draw(43)}",
        "Mailgun": f"key-{draw(32, _HEX)}",
        "Mailchimp": f"{draw(32, _HEX)}-us12",
        "Linear": f"lin_api_{draw(40)}",
        "Notion": f"ntn_{draw(11, _DIGITS)}{draw(35)}",
        "Airtable": f"pat{draw(14)}.{draw(64, _HEX)}",
        "Postman": f"PMAK-{draw(24, _HEX)}-{draw(34, _HEX)}",
        "Figma": f"figd_{draw(40, _URL_SAFE)}",
        "JSON web token": web_token(),
        "bearer header": f"Authorization: Bearer {draw(40)}",
        "basic header": f"Authorization: Basic {base64.b64encode(f'ada:{draw(20)}'.encode()).decode()}",
        "key header": f"X-Api-Key: {draw(32)}",
        "password in a URL": f"https://ada:{draw(12)}@git.example.org/x.git",
        "password of a database": f"postgresql://ada:{draw(12)}@db.example.org:5432/runs",
        "netrc": f"machine api.example.org login ada password {draw(20)}",
        "password in YAML": f"password: {draw(14)}",
        "key in JSON": json.dumps({"api_key": draw(32)}),
        "flag in a log": f"python train.py --hub_token {draw(30)}",
        "variable in a script": f"export MY_SECRET_KEY='{draw(24)}'",
        "SSH private key": key("OPENSSH PRIVATE KEY"),
        "RSA private key": key("RSA PRIVATE KEY"),
        "PGP private key": key("PGP PRIVATE KEY BLOCK"),
        "age key": f"AGE-SECRET-KEY-1{draw(58, 'QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L')}",
    }


if __name__ == "__main__":
    from hmm_datasets.hub import secret_scan

    columns = ("Kingfisher", "this package", "search")
    counts = [0, 0, 0]
    print(f"{'form':26}", *(f"{column:13}" for column in columns))
    for name, text in secret_forms().items():
        data = text.encode() + b"\n"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            path.write_bytes(data)
            row = secret_scan.found_by_rules(data), secret_scan.found_by_form(data), secret_scan.find_secret(path)
        print(f"{name:26}", *(f"{'found' if one else '-':13}" for one in row))
        counts = [count + bool(one) for count, one in zip(counts, row, strict=True)]
    print(f"{f'of {len(secret_forms())}':26}", *(f"{count:<13}" for count in counts))
